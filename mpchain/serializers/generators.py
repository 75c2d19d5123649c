"""Checks the states of random generators that were read from files."""

from typing import Any

import numpy as np

from mpchain.serializer import SerializationError

_KINDS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


def check_generator_state(state: dict[str, Any]) -> None:
    """Checks that NumPy's ``set_state`` or ``bit_generator.state`` can safely use a state.

    NumPy does not check the position in the generator's buffer: with a wrong position, it would
    read memory outside the buffer.

    Args:
        state: a result of ``RandomState.get_state(legacy=False)`` or ``bit_generator.state``.

    Raises:
        SerializationError: ``state`` is not a state, or its position is outside the buffer.
        Exception: an entry of ``state`` is missing, or NumPy cannot use the state.

    Example:
        >>> check_generator_state(np.random.default_rng(0).bit_generator.state)
    """
    kind = state["bit_generator"]
    if kind not in _KINDS:
        raise SerializationError(f"{kind!r} is not a random generator of NumPy {_KINDS}")
    position, most = 0, 0
    if kind == "MT19937":
        position, most = state["state"]["pos"], 624
    elif kind == "Philox":
        position, most = state["buffer_pos"], 4
    if type(position) is not int or not 0 <= position <= most:
        raise SerializationError(
            f"the state of a random generator {kind} has the position {position!r}, which must "
            f"be an integer from 0 to {most}"
        )
    generator = getattr(np.random, kind)()
    if "has_gauss" in state:
        np.random.RandomState(generator).set_state(state)
    else:
        generator.state = state
