"""Weights that a replay multiplies many times by few rows: transposed once, as BLAS wants them."""

from collections.abc import Callable, Iterator

import numpy as np

from mpchain.kernels.numpy_cpu import multiply_few_rows
from mpchain.kernels.onednn import prepared_product

_WORTH_TRANSPOSING, _BLOCK = 6, 64  # products; rows, which stay in the cache

Player = tuple[str, Callable, tuple]


def with_transposes(players: list[Player], written: list[np.ndarray]) -> list[Player]:
    """Returns what a replay calls, products of few rows with transposed weights among them.

    Args:
        players: a kind, a function and its arguments each.
        written: all memory that players of the kind ``call`` may write. Weights in it are left
            alone; others may change between two such players, where there is one of another kind.

    Example:
        >>> with_transposes([("call", np.copyto, (np.ones(2), 0))], [])[0][0]
        'call'
    """
    span, made = [], []
    for player in players:
        if player[0] == "call":
            span.append(player)
        else:
            made += [*_improved(span, written), player]
            span = []
    return made + list(_improved(span, written))


def _improved(span, written) -> Iterator[Player]:
    uses, transposed = {}, {}
    for _, function, arguments in span:
        if function is multiply_few_rows:
            W = arguments[1]
            uses.setdefault(_place(W), []).append(W)
    for place, arrays in uses.items():
        W = arrays[0]
        stays = not any(np.may_share_memory(W, array) for array in written)
        if stays and len(arrays) >= _WORTH_TRANSPOSING:
            transposed[place] = np.empty(W.shape[::-1], W.dtype)
    for player in span:
        _, function, arguments = player
        if function is multiply_few_rows and (place := _place(arguments[1])) in transposed:
            x, W, y = arguments
            product = prepared_product(x, transposed[place], y)
            if product is not None:
                if place in uses:
                    del uses[place]
                    yield "call", _transpose, (W, transposed[place])
                yield "call", *product
                continue
        yield player


def _place(array):
    return array.ctypes.data, array.shape, array.dtype.char


def _transpose(x, y):
    """Writes a matrix x, transposed, to y."""
    for i in range(0, len(x), _BLOCK):
        y[:, i : i + _BLOCK] = x[i : i + _BLOCK].T
