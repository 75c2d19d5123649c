"""Running a forward pass only for the parameters that it initializes."""

import contextlib
from collections.abc import Iterable
from typing import Any, Self

import numpy as np

from mpchain import backend
from mpchain.backends import cuda
from mpchain.configuration import config, using_config
from mpchain.distributed.communicators import Communicator
from mpchain.link import Link
from mpchain.parameter_tree import is_array


class DryRun:
    """Context manager: :meth:`undo` reverts what a forward pass did to models, except initializing
    parameters.

    Within it, initializers draw from a copy of NumPy's random state, unless ``config.rng`` is set.
    Initial values therefore do not depend on other draws of the pass (dropout), whose number
    depends on the rank's share of the batch.

    Args:
        models: the models.

    Example:
        >>> model = L.BatchNormalization(2)
        >>> with DryRun([model]) as dry_run:
        ...     _ = model(np.ones((4, 2), np.float32))
        >>> dry_run.undo(); model.avg_mean
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
        self._state = np.random.get_state()
        self._rng = np.random.RandomState()
        self._rng.set_state(self._state)
        self._has_initialized_attributes = False

    def __enter__(self) -> Self:
        self._scope = contextlib.ExitStack()
        self._scope.enter_context(using_config("rng", config.rng or self._rng))
        for device in {link.device for link, _ in self._attributes}:
            if device.xp is not np:
                self._scope.enter_context(cuda.new_generator(0, device.create_context()))
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._scope.__exit__(*exc_info)

    def undo(self) -> None:
        """Restores the links' attributes and arrays, and NumPy's random state.

        That state has the draws of initializers behind it, as if these had run before.
        """
        for link, attributes in self._attributes:
            held = vars(link)
            self._has_initialized_attributes |= any(
                value is None and is_array(held.get(name)) for name, value in attributes.items()
            )
            held.update(attributes)
        for array, values in self._arrays:
            backend.copyto(array, values)
        np.random.set_state(self._state if config.rng else self._rng.get_state())

    def initial_values_of(self, comm: Communicator) -> contextlib.AbstractContextManager:
        """Context manager for the pass after :meth:`undo`: initial values of attributes that were
        reverted, such as random vectors, are the same on all ranks, all of which call this.
        """
        if comm.micro_shards:  # which all draw the same initial values
            return contextlib.nullcontext()
        key = comm.bcast_obj(self._state[1])
        if config.rng or not self._has_initialized_attributes:
            return contextlib.nullcontext()
        return using_config("rng", np.random.RandomState(key))
