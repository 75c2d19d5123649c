"""The states of the random generators from which training draws, such as for dropout.

The states are saved as JSON, because the state of a generator is a structure of integers of any
size.
"""

import json
import random
from collections.abc import Container, Iterable
from typing import Any

import numpy as np

from mpchain.backends import cuda
from mpchain.configuration import config
from mpchain.serializer import AbstractSerializer, SerializationError
from mpchain.serializers.generators import check_generator_state
from mpchain.training.states import is_loading, serialize_optional


def serialize_random_states(
    serializer: AbstractSerializer, device_ids: Iterable[int], iteration: int
) -> dict[str, Any]:
    """Saves or reads the states of NumPy's and Python's global generators and of ``config.rng``.

    CuPy's generator has no readable state: saving seeds it anew, by a number that depends only on
    NumPy's state, the iteration and the GPU's id. A resumed training on a GPU therefore equals a
    training that saved at the same iterations.

    Args:
        serializer: a serializer or deserializer.
        device_ids: the ids of the GPUs in use.
        iteration: number of completed iterations.

    Returns:
        The stored states, for :func:`restore_random_states`; empty when saving.

    Raises:
        Exception: the file contains something that is not a state of a generator.

    Example:
        >>> from mpchain.serializers import DictionarySerializer, NpzDeserializer
        >>> serializer = DictionarySerializer()
        >>> states = serialize_random_states(serializer, [], 0), np.random.rand()
        >>> states = serialize_random_states(NpzDeserializer(serializer.target), [], 0)
        >>> restore_random_states(states, [])
    """
    if is_loading(serializer):
        states = {}
        for name, check in _CHECKS.items():
            stored = serialize_optional(serializer, name, None)
            if stored is not None:
                states[name] = json.loads(stored.tobytes())
                check(states[name])
        return states
    seed = _derived_seed(iteration)
    states = {
        "numpy": np.random.get_state(legacy=False),
        "python": random.getstate(),
        "config": None if config.rng is None else _state_of(config.rng),
        "cupy": {str(number): seed + number for number in device_ids},
    }
    for name, state in states.items():
        text = json.dumps(state, default=np.ndarray.tolist)
        # The text is stored as bytes, because NumPy's strings take four bytes per character.
        serializer(name, np.frombuffer(text.encode(), np.uint8))
    _seed_cupy(states["cupy"])
    return {}


def restore_random_states(states: dict[str, Any], device_ids: Container[int]) -> None:
    """Restores the states that :func:`serialize_random_states` has returned.

    Args:
        states: the result of :func:`serialize_random_states`.
        device_ids: the ids of the GPUs in use; the generators of other GPUs stay unchanged.

    Raises:
        SerializationError: ``config.rng`` is not of the kind of the saved generator.
    """
    for name, state in states.items():
        if name == "numpy":
            np.random.set_state(state)
        elif name == "python":
            _restore_python(state)
        elif name == "cupy":
            _seed_cupy({key: seed for key, seed in state.items() if int(key) in device_ids})
        elif state is not None and config.rng is not None:
            _restore_config(state)


def _derived_seed(iteration):
    copy = np.random.RandomState()
    copy.set_state(np.random.get_state())
    sequence = np.random.SeedSequence([copy.randint(2**31), iteration])
    return int(sequence.generate_state(1)[0]) % 2**31


def _state_of(rng):
    if isinstance(rng, np.random.RandomState):
        return rng.get_state(legacy=False)
    return rng.bit_generator.state


def _restore_python(state, generator=random):
    version, internal, gauss = state
    generator.setstate((version, tuple(internal), gauss))


def _restore_config(state):
    kind = _state_of(config.rng)["bit_generator"]
    if kind != state["bit_generator"]:
        raise SerializationError(
            f"the random generator config.rng is a {kind}, but the snapshot has a "
            f"{state['bit_generator']}: set config.rng to one of that kind before loading"
        )
    if isinstance(config.rng, np.random.RandomState):
        config.rng.set_state(state)
    else:
        config.rng.bit_generator.state = state


def _seed_cupy(seeds):
    for number, seed in seeds.items():
        with cuda.get_device_from_id(int(number)):
            cuda.cupy.random.seed(seed)


def _check_seeds(seeds):
    for number, seed in seeds.items():
        if int(number) < 0 or not 0 <= seed < 2**63:
            raise SerializationError(f"{seed!r} for GPU {number!r} is not a seed")


_CHECKS = {
    "numpy": check_generator_state,
    "python": lambda state: _restore_python(state, random.Random()),
    "config": lambda state: state is None or check_generator_state(state),
    "cupy": _check_seeds,
}
