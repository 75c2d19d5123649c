"""Runs a forward pass that initializes parameters to the same values on all ranks."""

import contextlib
import copy
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Self

import numpy as np

from mpchain import backend
from mpchain.backends import cuda
from mpchain.configuration import config, using_config
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.gradients.replication import digest
from mpchain.distributed.watch.fingerprints import n_calls
from mpchain.link import Link
from mpchain.parameter_tree import is_array
from mpchain.variable import Parameter


class Before:
    """A copy of models' attributes and arrays, and of random states, before a forward pass.

    Args:
        models: the models.

    Example:
        >>> model = L.BatchNormalization(2)
        >>> before = Before([model])
        >>> _ = model(np.ones((4, 2), np.float32))
        >>> before.restore_all(); model.avg_mean
        array([0., 0.], dtype=float32)
    """

    def __init__(self, models: Iterable[Link]):
        links = {id(link): link for model in models for link in model.links()}
        self._attributes = [(link, dict(vars(link))) for link in links.values()]
        self._arrays = [
            (value, value.copy())
            for _, attributes in self._attributes
            for value in attributes.values()
            if is_array(value)
        ]
        self._state, self._of_initializers = np.random.get_state(), copy.deepcopy(config.rng)
        params = {id(param): param for link in links.values() for param in link.params()}
        self._uninitialized = [
            (param, dict(vars(param))) for param in params.values() if not param.is_initialized
        ]

    def restore_all(self) -> None:
        """Restores everything. Parameters that have been initialized since the copy was made will
        be initialized again, with the same random numbers."""
        self.restore()
        for param, attributes in self._uninitialized:
            vars(param).clear()
            vars(param).update(attributes)
        if isinstance(config.rng, np.random.RandomState):
            config.rng.set_state(self._of_initializers.get_state())
        elif config.rng is not None:
            config.rng.bit_generator.state = self._of_initializers.bit_generator.state

    def restore(self) -> None:
        """Restores attributes, arrays and NumPy's random state."""
        for link, attributes in self._attributes:
            vars(link).update(attributes)
        for array, values in self._arrays:
            backend.copyto(array, values)
        np.random.set_state(self._state)


class DryRun(Before):
    """Context manager: the forward pass inside the block is either kept (:meth:`keep`), or reverted
    except for initialized parameters (:meth:`undo`) and repeated.

    Inside the block, initializers draw from a copy of rank 0's NumPy random state, unless
    ``config.rng`` is set. Initial values are therefore the same on all ranks that initialize in the
    same order. They do not depend on other draws of the pass (dropout), whose number depends on the
    rank's share of the batch.

    Args:
        models: the models.
        comm: the communicator of the ranks; every rank must create a DryRun.

    Example:
        >>> model = L.BatchNormalization(2)
        >>> with DryRun([model], comm) as dry_run:
        ...     _ = model(np.ones((4, 2), np.float32))
        >>> dry_run.undo(); model.avg_mean
        array([0., 0.], dtype=float32)
    """

    def __init__(self, models: Iterable[Link], comm: Communicator):
        super().__init__(models)
        self._comm = comm
        self._of_rank_0 = comm.bcast_obj(self._state)
        self._rng = np.random.RandomState()
        self._rng.set_state(self._of_rank_0)
        self._n_calls = n_calls(comm)

    def __enter__(self) -> Self:
        self._scope = contextlib.ExitStack()
        self._scope.enter_context(using_config("rng", config.rng or self._rng))
        for device in {link.device for link, _ in self._attributes}:
            if device.xp is not np:
                self._scope.enter_context(cuda.new_generator(0, device.create_context()))
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._scope.__exit__(*exc_info)

    def agree(self, params: Mapping[str, Parameter]) -> str:
        """Returns the decision of all ranks on the pass: to ``"keep"`` or ``"repeat"`` it, or to
        ``"skip"`` the step, after a warning.

        The pass is kept if all ranks that have initialized parameters have the same values.
        Otherwise it is repeated, unless ranks communicated during the pass: the step is then
        skipped. With micro-shards, a pass in which ranks did not communicate is repeated even if
        they have the same values.

        Args:
            params: dict from name to each parameter that may have been initialized.
        """
        values = {name: param.array for name, param in params.items()}
        mine = (
            digest(values),
            digest(dict(self._initialized())),
            n_calls(self._comm) - self._n_calls,
        )
        is_new = any(value is not None for value in values.values())
        held = [*filter(None, self._comm.allgather_obj(mine if is_new else None))]
        if not held or (self._comm.size == 1 and not self._comm.micro_shards):
            return "keep"
        of_params, of_attributes, calls = map(set, zip(*held))
        if calls == {0}:
            # With micro-shards, initial values of attributes must be drawn as the second pass draws
            # them.
            are_alike = len(of_params) == len(of_attributes) == 1 and not self._comm.micro_shards
            return "keep" if are_alike else "repeat"
        if len(of_params) == 1:
            return "keep"
        warn_of_skipping(
            self._comm,
            "The loss function communicates with other ranks and therefore cannot be repeated: let "
            "initializers draw from NumPy's global generator, in the same order on all ranks",
        )
        return "skip"

    def _initialized(self):
        """Yields the paths and values of link attributes that the pass has turned into arrays."""
        for i, (link, attributes) in enumerate(self._attributes):
            for name, value in attributes.items():
                if value is None and is_array(vars(link).get(name)):
                    yield f"{i} {name}", vars(link)[name]

    def keep(self) -> None:
        """Keeps the pass. If only initializers have drawn random numbers, advances NumPy's random
        state past their draws."""
        if _are_equal(np.random.get_state(), self._state):
            self._set_random_state()

    def _set_random_state(self):
        """Advances NumPy's random state past the initializers' draws, if it was rank 0's state."""
        has_drawn = not config.rng and _are_equal(self._state, self._of_rank_0)
        np.random.set_state(self._rng.get_state() if has_drawn else self._state)

    def undo(self) -> None:
        """Restores the links' attributes and arrays, and NumPy's random state.

        The random state is advanced past the initializers' draws, as if they had run earlier.
        """
        self._reverts = any(True for _ in self._initialized())
        self.restore()
        self._set_random_state()

    def initial_values(self) -> contextlib.AbstractContextManager:
        """Context manager for the pass after :meth:`undo`, which makes initial values of reverted
        attributes, such as random vectors, the same on all ranks."""
        # All micro-shards draw the same initial values anyway.
        if config.rng or self._comm.micro_shards or not self._reverts:
            return contextlib.nullcontext()
        return using_config("rng", np.random.RandomState(self._of_rank_0[1]))


def warn_of_skipping(comm: Communicator, remedy: str) -> None:
    """Warns on rank 0 that a step is skipped because initial parameters differed."""
    if comm.rank == 0:
        warnings.warn(
            "MultiNodeOptimizer.update: this step is skipped, because its gradients were "
            "computed with initial parameters that differed between ranks; from now on the "
            f"parameters are the same. {remedy}",
            RuntimeWarning,
            stacklevel=4,
        )


def _are_equal(state, other):
    return all(map(np.array_equal, state, other))
