"""Running a forward pass only for the parameters that it initialises."""

import numpy as np

from mpchain import backend
from mpchain.backends import cuda
from mpchain.configuration import config, using_config


class DryRun:
    """Context manager: what a forward pass does to a model, but for its parameters, can be undone.

    Within it, initialisers draw from a copy of NumPy's random state, unless ``config.rng`` says
    from where. So initial values do not depend on what the pass draws besides (dropout), which in
    turn depends on the share of the batch that a rank has.

    Args:
        model (Link): the model.
    """

    def __init__(self, model):
        self._attributes = [(link, dict(vars(link))) for link in model.links()]
        self._arrays = [
            (value, value.copy())
            for _, attributes in self._attributes
            for value in attributes.values()
            if isinstance(value, np.ndarray) or cuda.is_gpu_array(value)
        ]
        self._state = np.random.get_state()
        self._rng = np.random.RandomState()
        self._rng.set_state(self._state)

    def __enter__(self):
        self._scope = using_config("rng", config.rng or self._rng)
        self._scope.__enter__()
        return self

    def __exit__(self, *exc_info):
        self._scope.__exit__(*exc_info)

    def undo(self):
        """Restores the links' attributes and arrays, and NumPy's random state.

        What initialisers drew remains drawn, as if the parameters had been initialised beforehand.
        """
        for link, attributes in self._attributes:
            vars(link).update(attributes)
        for array, values in self._arrays:
            backend.copyto(array, values)
        np.random.set_state(self._state if config.rng else self._rng.get_state())
