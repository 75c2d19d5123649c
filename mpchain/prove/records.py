"""Records of a program's updates."""

import dataclasses
import os
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mpchain.backends import cuda
from mpchain.variable import Variable


@dataclasses.dataclass
class Application:
    """A function that was applied.

    Attributes:
        name, link, place: the function, the path of the link, the line of the user's program.
        outputs: the arrays that it computed.
        parents: the numbers of the applications whose outputs it got.
        leaves: the arrays that it got besides: of the batch, constants; names of parameters.
        number: its place among those of the pass.
        exchanges: whether it is a message between ranks, which one process has no need of.
    """

    name: str
    link: str
    place: str
    outputs: list[np.ndarray]
    parents: list[int]
    leaves: list[Any]
    number: int
    exchanges: bool = False

    def __str__(self) -> str:
        where = f" of link {self.link}" if self.link else ""
        return f"function {self.name}{where}, {self.place}"


@dataclasses.dataclass
class Pass:
    """The forward pass of a part of a batch.

    Attributes:
        n: the number of samples; None if it is unknown.
        applications: the functions, in order.
        loss: the loss that it returned; None without a loss function.
        last: the number of the application that computed the loss; None if none did.
        reports: the values that it reported, by name.
        origins: the numbers of the applications that computed reported values, by name.
        draws: which global generators it drew from.
    """

    n: float | None
    applications: list[Application] = dataclasses.field(default_factory=list)
    loss: np.ndarray | None = None
    last: int | None = None
    reports: dict[str, Any] = dataclasses.field(default_factory=dict)
    origins: dict[str, int] = dataclasses.field(default_factory=dict)
    draws: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Evaluation:
    """One computation of a loss and its gradients.

    Attributes:
        batches: for each part, the arrays and lists among the arguments of its loss function.
        sizes: the number of samples of each part.
        passes: those of parts that have samples.
        gradients: the parameters' averaged gradients, by name, before the step; None if unseen.
    """

    batches: list[dict[str, Any]]
    sizes: list[float | None]
    passes: list[Pass] = dataclasses.field(default_factory=list)
    gradients: dict[str, np.ndarray | None] | None = None


@dataclasses.dataclass
class State:
    """The state of an optimizer and its model.

    Attributes:
        params, persistents: of the model, by name.
        hyperparameters: of the optimizer, by name.
        whole: everything that files keep.
        generators: states of the global generators of random numbers.
    """

    params: dict[str, np.ndarray]
    persistents: dict[str, Any]
    hyperparameters: dict[str, Any]
    whole: dict[str, Any]
    generators: tuple


@dataclasses.dataclass
class Update:
    """An update.

    Attributes:
        optimizer: its number, in the order of first updates.
        kind: its class.
        is_of_ranks: whether it is a multi-node optimizer.
        place: the line of the user's program.
        before, after: states.
        evaluations: of the loss.
        results: reported values and results of evaluators since the update before, by name.
    """

    optimizer: int
    kind: str
    is_of_ranks: bool
    place: str
    before: State
    evaluations: list[Evaluation] = dataclasses.field(default_factory=list)
    after: State | None = None
    results: dict[str, Any] = dataclasses.field(default_factory=dict)
    iterators: list["Samples"] = dataclasses.field(default_factory=list)
    drawn: list[tuple[int, Any]] = dataclasses.field(default_factory=list)


class Samples(NamedTuple):
    """The dataset of an iterator.

    Attributes:
        kind: its class.
        n: the number of samples of its dataset; None if it does not say.
        is_shared: whether it divides batches among ranks, or gives all the same.
        texts: of each sample, the same for the same numbers; None if they are too many.
        is_random: whether a sample differs from reading to reading.
    """

    kind: str
    n: int | None
    is_shared: bool
    texts: list[bytes] | None = None
    is_random: bool = False


def on_host(value: Any) -> Any:
    """Returns a value that outlives the program: arrays and Variables as copied NumPy arrays.

    Example:
        >>> on_host({"x": mpchain.Variable(np.ones(2))})
        {'x': array([1., 1.])}
    """
    if isinstance(value, Variable):
        value = value.array
    if cuda.is_gpu_array(value):
        return cuda.to_cpu(value)
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {name: on_host(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(on_host, value))
    return value


def path_of(folder: str, who: str, number: int | str) -> str:
    """Returns the file of an update of a rank.

    Example:
        >>> path_of("f", "rank 0", 2)
        'f/rank 0, 2.pickle'
    """
    return os.path.join(folder, f"{who}, {number}.pickle")


def save(path: str, record: object) -> None:
    """Writes a record, which is there as a whole or not at all.

    >>> save("a.pickle", 1); load("a.pickle")
    1
    """
    with open(path + ".part", "wb") as file:
        pickle.dump(record, file, protocol=pickle.HIGHEST_PROTOCOL)
    os.replace(path + ".part", path)


def load(path: str) -> Any:
    """Reads a record; see :func:`save`."""
    with open(path, "rb") as file:
        return pickle.load(file)


def columns(updates: Sequence[Update], evaluation: int) -> list[Pass]:
    """Returns the passes of all ranks of one evaluation, in the order of samples."""
    return [p for update in updates for p in update.evaluations[evaluation].passes]
