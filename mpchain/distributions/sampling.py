"""Random numbers for samples."""

from mpchain import backend, observers, random
from mpchain.backends import cuda
from mpchain.configuration import config
from mpchain.typing import Array
from mpchain.utils.arrays import converted
from mpchain.variable import Variable


def draw(like: Variable, name: str, *parameters: Array | int, size: tuple[int, ...]) -> Array:
    """Draws random numbers from ``config.rng``, or from the global state if that is None.

    In updates of a multi-node optimizer, numbers may belong to samples: see :mod:`mpchain.random`.

        >>> draw(Variable(np.zeros(2, np.float32)), "standard_normal", size=(3,)).dtype
        dtype('float32')

    Args:
        like: Variable with the dtype and device of the result.
        name: a method that the generators of NumPy and CuPy share.
        parameters: arrays of parameters on that device, or integers.
        size: the shape of the result.

    Returns:
        array.
    """
    device = like.device
    wide = [p if isinstance(p, int) else p.astype("d") for p in parameters]
    with backend.using_device(device):
        if random.is_by_sample():
            values = random.draw(device.xp, name, *wide, size=size)
        elif config.rng is None:
            values = getattr(random.source(device.xp), name)(*wide, size=size)
        else:
            observers.refuse("a distribution draws from config.rng")
            on_host = [p if isinstance(p, int) else cuda.to_cpu(p) for p in wide]
            values = getattr(config.rng, name)(*on_host, size=size)
        return converted(device.xp, values, like.dtype)
