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
    """One application of a function.

    Attributes:
        name: the name of the function.
        link: the path of the link that called it.
        place: the line of the user's program that called the function.
        outputs: the arrays that the function computed.
        parents: the indices of the applications that computed the inputs.
        leaves: the other inputs: arrays of the batch, constants, and names of parameters.
        number: the index of this application in the pass.
        exchanges: whether the function sends messages between ranks, which one process omits.
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
    """The forward pass of a micro-batch.

    Attributes:
        n: the number of samples; None if it is unknown.
        applications: the functions, in order.
        loss: the loss that the pass returned; None without a loss function.
        last: the index of the application that computed the loss; None if there is none.
        reports: the values that the pass reported, by name.
        origins: the indices of the applications that computed reported values, by name.
        draws: the names of the global random generators that the pass used.
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
        batches: for each micro-batch, the arrays and lists among the loss function's arguments.
        sizes: the number of samples of each micro-batch; None if it is unknown.
        passes: the pass of each micro-batch, including micro-batches without samples.
        gradients: the parameters' averaged gradients, by name, before the step; None if they are
            not known.
    """

    batches: list[dict[str, Any]]
    sizes: list[float | None]
    passes: list[Pass] = dataclasses.field(default_factory=list)
    gradients: dict[str, np.ndarray | None] | None = None


@dataclasses.dataclass
class State:
    """The state of an optimizer and its model.

    Attributes:
        params, persistents: the parameters and persistent values of the model, by name.
        hyperparameters: the hyperparameters of the optimizer, by name.
        whole: the entire state that a snapshot saves.
        generators: the states of the global random generators.
    """

    params: dict[str, np.ndarray]
    persistents: dict[str, Any]
    hyperparameters: dict[str, Any]
    whole: dict[str, Any]
    generators: tuple


@dataclasses.dataclass
class Update:
    """An update of an optimizer.

    Attributes:
        optimizer: the optimizer's index, in the order of first updates.
        kind: the name of the optimizer's class.
        is_of_ranks: whether the optimizer is a multi-node optimizer.
        place: the line of the user's program.
        before, after: the states before and after the update.
        evaluations: the evaluations of the loss.
        results: reported values and results of evaluators since the previous update, by name.
        iterators: facts about the datasets of the iterators that the program has used so far.
        drawn: pairs of an iterator's index and a batch, for the batches since the previous update.
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
    """Facts about the dataset of an iterator.

    Attributes:
        kind: the name of the iterator's class.
        n: the number of samples of its dataset; None if it is unknown.
        is_shared: whether the iterator divides batches among ranks, or gives all ranks the same.
        texts: a digest of each sample; equal samples have equal digests. None if not all samples
            were read.
        is_random: whether a sample differs each time it is read.
    """

    kind: str
    n: int | None
    is_shared: bool
    texts: list[bytes] | None = None
    is_random: bool = False


def on_host(value: Any) -> Any:
    """Copies a value so that it outlives the program: arrays and Variables become NumPy arrays.

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
    """Returns the path of the record of a rank's update.

    Example:
        >>> path_of("f", "rank 0", 2)
        'f/rank 0, 2.pickle'
    """
    return os.path.join(folder, f"{who}, {number}.pickle")


def save(path: str, record: object) -> None:
    """Writes a record atomically: the file is complete or missing.

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
    """Returns the passes of all ranks in one evaluation, in the order of the samples."""
    return [p for update in updates for p in update.evaluations[evaluation].passes]
