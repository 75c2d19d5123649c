"""States of random generators that come from files."""

import numpy as np

from mpchain.serializer import SerializationError

_POSITIONS = {  # where in it, and what it can be at most
    "MT19937": (lambda state: state["state"]["pos"], 624),
    "Philox": (lambda state: state["buffer_pos"], 4),
}
_KINDS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


def check_generator_state(state):
    """Checks what ``set_state(state)`` of NumPy's generators takes, or ``bit_generator.state``.

    NumPy believes the position in the generator's buffer, and reads there, wherever that is.

    Args:
        state (dict): what ``RandomState.get_state(legacy=False)`` or ``bit_generator.state`` was.

    Raises:
        SerializationError: it is no state, or its position is outside the buffer.
        Exception: what NumPy raises if it cannot take the state.
    """
    kind = state["bit_generator"]
    if kind not in _KINDS:
        raise SerializationError(f"{kind!r} is none of NumPy's random generators {_KINDS}")
    if kind in _POSITIONS:
        find, most = _POSITIONS[kind]
        position = find(state)
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
