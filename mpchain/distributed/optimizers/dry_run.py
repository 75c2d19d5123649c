"""Running a forward pass only for the parameters that it initializes."""

import contextlib

import numpy as np

from mpchain import backend
from mpchain.configuration import config, using_config
from mpchain.parameter_tree import is_array


class DryRun:
    """Context manager: what a forward pass does to models, but for parameters, can be undone.

    Within it, initializers draw from a copy of NumPy's random state, unless ``config.rng`` says
    from where. So initial values do not depend on what the pass draws besides (dropout), which in
    turn depends on the share of the batch that a rank has.

    Args:
        models (iterable of Link): the models.
    """

    def __init__(self, models):
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

    def __enter__(self):
        self._scope = using_config("rng", config.rng or self._rng)
        self._scope.__enter__()
        return self

    def __exit__(self, *exc_info):
        self._scope.__exit__(*exc_info)

    def undo(self):
        """Restores the links' attributes and arrays, and NumPy's random state.

        What initializers drew remains drawn, as if the parameters had been initialized beforehand.
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

    def initial_values_of(self, comm):
        """Context manager: in the pass that follows :meth:`undo`, initial values of attributes that
        it took back, such as random vectors, are the same on all ranks.

        Args:
            comm (Communicator): the ranks, all of which call this.
        """
        if comm.micro_shards:  # they draw initial values alike anyway
            return contextlib.nullcontext()
        key = comm.bcast_obj(self._state[1])
        if config.rng or not self._has_initialized_attributes:
            return contextlib.nullcontext()
        return using_config("rng", np.random.RandomState(key))
