"""Contractions, which multiply arrays and sum over shared axes."""

import itertools
import math
import string
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpchain import kernels
from mpchain.backends.cuda import get_array_module
from mpchain.functions.array import reshape, sum_to, swapaxes, transpose
from mpchain.functions.declaring.declaration import differentiable
from mpchain.functions.indexing import get_item
from mpchain.functions.reduction import sum
from mpchain.typing import Input
from mpchain.utils.type_check import check
from mpchain.variable import Variable, as_variable


def _transposed(x):
    return x.swapaxes(-1, -2) if x.__class__ is np.ndarray else np.swapaxes(x, -1, -2)


def _summed_to(x, shape):
    return x if x.shape == shape else sum_to.on(x, shape)


@differentiable(
    lambda g, b, a_shape: _summed_to(_matrix_product.on(g, _transposed(b)), a_shape),
    lambda g, a, b_shape: _summed_to(_matrix_product.on(_transposed(a), g), b_shape),
)
def _matrix_product(a, b):
    return kernels.product(a, b)


def _broadcast(shape0, shape1):
    return all(m == n or 1 in (m, n) for m, n in zip(shape0[::-1], shape1[::-1]))


def _fit_plainly(a, b):
    """Returns whether a product needs no more checks: NumPy arrays, or Variables of them, that are
    matrices or equal stacks of matrices."""
    a, b = getattr(a, "_array", a), getattr(b, "_array", b)
    if a.__class__ is not np.ndarray or b.__class__ is not np.ndarray:
        return False
    m, n = a.shape, b.shape
    return len(m) == len(n) > 1 and m[-1] == n[-2] and m[:-2] == n[:-2]


def matmul(a: Input, b: Input, transa: bool = False, transb: bool = False) -> Variable:
    """Matrix product of two arrays, or of two stacks of matrices that broadcast.

    Args:
        a: Variable or array (..., n, k), or (k,).
        b: Variable or array (..., k, m), or (k,).
        transa, transb: whether to swap the last two axes of ``a`` or ``b`` first.

    Returns:
        Variable (..., n, m), without n if ``a`` is a vector, and without m if ``b`` is a vector.

    Raises:
        InvalidType: an argument is 0-d, the inner sizes differ, or the stacks do not broadcast.

    Example:
        >>> F.matmul(np.ones((2, 3)), np.ones((3, 4))).shape
        (2, 4)
    """
    if not (transa or transb) and _fit_plainly(a, b):
        return _matrix_product(a, b)
    a, b = as_variable(a), as_variable(b)
    check(a.ndim > 0 and b.ndim > 0, "matmul", "a and b need at least one axis", a=a, b=b)
    rows = (-2,) if a.ndim == 1 else ()
    columns = (-1,) if b.ndim == 1 else ()
    a = reshape(a, (1, a.size)) if rows else swapaxes(a, -1, -2) if transa else a
    b = reshape(b, (b.size, 1)) if columns else swapaxes(b, -1, -2) if transb else b
    inner = "a must have as many columns (rows with transa) as b has rows (columns with transb)"
    check(a.shape[-1] == b.shape[-2], "matmul", inner, a=a, b=b, transa=transa, transb=transb)
    stacks = "the stacks of matrices must broadcast"
    check(_broadcast(a.shape[:-2], b.shape[:-2]), "matmul", stacks, a=a, b=b)
    y = _matrix_product(a, b)
    if not rows and not columns:
        return y
    added = rows + columns
    return reshape(y, tuple(n for i, n in enumerate(y.shape) if i - y.ndim not in added))


def batch_matmul(a: Input, b: Input, transa: bool = False, transb: bool = False) -> Variable:
    """Matrix products of two batches, matrix by matrix.

    Args:
        a: Variable or array (B, n, k), or (B, n) for columns (B, n, 1).
        b: Variable or array (B, k, m), or (B, k) for columns (B, k, 1).
        transa, transb: whether to transpose the matrices of ``a`` or ``b`` first.

    Returns:
        Variable (B, n, m).

    Raises:
        InvalidType: ranks or sizes do not match.

    Example:
        >>> F.batch_matmul(np.ones((5, 2, 3)), np.ones((5, 4, 3)), transb=True).shape
        (5, 2, 4)
    """
    known = a.ndim in (2, 3) and b.ndim in (2, 3)
    check(known, "batch_matmul", "a and b must have 2 or 3 axes", a=a, b=b)
    a, b = (reshape(x, (*x.shape, 1)) if x.ndim == 2 else x for x in (a, b))
    return matmul(a, b, transa, transb)


# A contraction of two arrays, a and b, with labeled axes is the gradient of the trilinear form
# <g, a b> with respect to g. Each label occurs in at least two of the three arrays.


@differentiable(
    lambda g, b, labels: _contract.on(g, b, (labels[2], labels[1], labels[0])),
    lambda g, a, labels: _contract.on(g, a, (labels[2], labels[0], labels[1])),
)
def _contract(a, b, labels):
    """Multiplies ``a`` and ``b``, and sums over the labels that the output lacks. ``labels`` are
    the labels of ``a``, ``b`` and the output."""
    la, lb, out = labels
    size = dict(zip(la, a.shape)) | dict(zip(lb, b.shape))
    batch = [i for i in la if i in lb and i in out]
    summed = [i for i in la if i in lb and i not in out]
    rows, columns = [i for i in la if i not in lb], [i for i in lb if i not in la]

    def stack(x, have, *groups):
        x = x.transpose([have.index(i) for group in groups for i in group])
        return x.reshape([math.prod(size[i] for i in group) for group in groups])

    a, b = stack(a, la, batch, rows, summed), stack(b, lb, batch, summed, columns)
    y = kernels.product(a, b) if summed else a * b
    made = [*batch, *rows, *columns]
    return y.reshape([size[i] for i in made]).transpose([made.index(i) for i in out])


def tensordot(a: Input, b: Input, axes: int | Sequence[int | Sequence[int]] = 2) -> Variable:
    """Sums products over axes of two arrays. The result has the remaining axes of ``a``, then the
    remaining axes of ``b``.

    Args:
        a, b: Variables or arrays.
        axes: if an integer, the last ``axes`` axes of ``a`` are contracted with the first ``axes``
            axes of ``b``; else a pair: the axes of ``a`` and the axes of ``b``, each an integer or
            a sequence.

    Returns:
        Variable.

    Raises:
        InvalidType: an array lacks an axis, an axis is given twice, or the sizes of the axes
            differ.
        ValueError: ``axes`` is neither a number nor a pair of equally many axes.

    Example:
        >>> F.tensordot(np.ones((2, 3, 4)), np.ones((3, 4, 5))).shape
        (2, 5)
    """
    a, b = as_variable(a), as_variable(b)
    if isinstance(axes, (int, np.integer)):
        fits = 0 <= axes <= min(a.ndim, b.ndim)
        check(
            fits,
            "tensordot",
            "a and b must have at least this number of axes",
            a=a,
            b=b,
            axes=axes,
        )
        axes = range(a.ndim - axes, a.ndim), range(axes)
    axes = [(x,) if isinstance(x, (int, np.integer)) else tuple(x) for x in axes]
    if len(axes) != 2 or len(axes[0]) != len(axes[1]):
        raise ValueError(f"tensordot: axes must pair axes of a with axes of b, but is {axes}")
    for x, of_x in zip((a, b), axes):
        known = all(-x.ndim <= i < x.ndim for i in of_x)
        differ = known and len({i % x.ndim for i in of_x}) == len(of_x)
        rule = "axes must be different axes of a and of b"
        check(differ, "tensordot", rule, a=a, b=b, axes=axes)
    pairs = {j % b.ndim: i % a.ndim for i, j in zip(*axes)}
    alike = all(a.shape[i] == b.shape[j] for j, i in pairs.items())
    check(alike, "tensordot", "the axes must have equal sizes", a=a, b=b, axes=axes)
    la, lb = tuple(range(a.ndim)), tuple(pairs.get(j, a.ndim + j) for j in range(b.ndim))
    return _contract(a, b, (la, lb, tuple(i for i in (*la, *lb) if (i in la) != (i in lb))))


def _labels_of_text(text):
    """Returns the labels of each operand of text like 'ij,jk->ik', and the labels of the output
    (None if the text lacks '->')."""
    inputs, arrow, output = text.replace(" ", "").partition("->")

    def labels(term):
        found: list[Any] = [Ellipsis if c == "." else c for c in term.replace("...", ".")]
        if any(i is not Ellipsis and i not in string.ascii_letters for i in found):
            raise ValueError(f"einsum: {text!r} holds {term!r}: labels must be letters or '...'")
        return found

    return [labels(term) for term in inputs.split(",")], labels(output) if arrow else None


def _read(operands):
    """Returns the arrays, their lists of labels, and the labels of the output (None if they are not
    given)."""
    if operands and isinstance(operands[0], str):
        inputs, output = _labels_of_text(operands[0])
        xs = operands[1:]
    else:
        n = len(operands) // 2 * 2
        xs, inputs = operands[0:n:2], [list(labels) for labels in operands[1:n:2]]
        output = list(operands[n]) if len(operands) > n else None
    if not xs or len(xs) != len(inputs):
        raise ValueError(
            f"einsum: there must be subscripts for each operand, but there are {len(xs)} operands "
            f"and subscripts for {len(inputs)}"
        )
    return [as_variable(x) for x in xs], inputs, output


def _spelled_out(xs, inputs, output):
    """Replaces every ellipsis by labels, and infers the output if it is not given."""
    rest = [x.ndim - len(labels) + labels.count(...) for x, labels in zip(xs, inputs)]
    for x, labels, n in zip(xs, inputs, rest):
        fits = n == 0 if ... not in labels else n >= 0 and labels.count(...) == 1
        check(fits, "einsum", "the operand must have the axes {labels}", operand=x, labels=labels)
    ellipsis = [("...", i) for i in range(-max(rest), 0)]
    named = [i for labels in inputs for i in labels if i is not ...]
    if output is None:
        output = [..., *sorted(i for i in set(named) if named.count(i) == 1)]
    if ellipsis and ... not in output:
        raise ValueError("einsum: the axes of '...' cannot be summed: the output must have '...'")
    wrong = [i for i in output if output.count(i) > 1 or (i is not ... and i not in named)]
    if wrong:
        raise ValueError(
            "einsum: each label of the output must be a label of an operand and occur once, but "
            f"{wrong[0]!r} is not"
        )

    def spell(labels, n):
        return [j for i in labels for j in (ellipsis[len(ellipsis) - n :] if i is ... else [i])]

    return [spell(labels, n) for labels, n in zip(inputs, rest)], spell(output, len(ellipsis))


def _sizes(xs, inputs):
    """Returns the size of each label; axes of size one in an ellipsis broadcast."""
    sizes = {}
    for x, labels in zip(xs, inputs):
        for i, n in zip(labels, x.shape):
            known = sizes.setdefault(i, n)
            if isinstance(i, tuple) and 1 in (known, n):
                sizes[i] = known if n == 1 else n
            else:
                rule = "all axes labeled {label!r} must have the same size, {size}"
                check(known == n, "einsum", rule, operand=x, label=i, size=known)
    return sizes


def _simplified(x, labels, sizes, kept):
    """Drops broadcast axes, takes diagonals, and sums over labels that only this operand has."""
    pairs = [(i, n) for i, n in zip(labels, x.shape) if n == sizes[i]]
    x, labels = reshape(x, tuple(n for _, n in pairs)), [i for i, _ in pairs]
    for i in {i: None for i in labels if labels.count(i) > 1}:
        places = [axis for axis, j in enumerate(labels) if j == i]
        others = [axis for axis, j in enumerate(labels) if j != i]
        every = get_array_module(x).arange(sizes[i])
        x = get_item(transpose(x, (*places, *others)), (every,) * len(places))
        labels = [i, *(labels[axis] for axis in others)]
    lone = tuple(axis for axis, i in enumerate(labels) if i not in kept)
    return (sum(x, lone) if lone else x), tuple(i for i in labels if i in kept)


def _cheapest_pair(terms, output, sizes):
    """Returns the indices of the two terms whose replacement by their product adds the fewest
    elements."""

    def growth(pair):
        rest = {i for k, (_, labels) in enumerate(terms) if k not in pair for i in labels}
        first, second = (set(terms[k][1]) for k in pair)
        sets = (first | second) & (rest | set(output)), first, second
        made, *used = (math.prod(sizes[i] for i in labels) for labels in sets)
        return made - used[0] - used[1]

    return min(itertools.combinations(range(len(terms)), 2), key=growth)


def einsum(*operands: Any) -> Variable:
    """Sums of products over labeled axes, in Einstein's notation.

    ``einsum("ij,jk->ik", a, b)`` is the matrix product; so is
    ``einsum(a, [0, 1], b, [1, 2], [0, 2])``. Labels that the output lacks are summed over; a label
    that occurs twice in an operand takes its diagonal; ``...`` stands for all other axes, which
    broadcast. The default output has the axes of ``...``, then the sorted labels that occur once.
    Operands are multiplied in pairs.

    Args:
        operands: the subscripts, then the Variables or arrays; or each Variable or array followed
            by its list of labels (integers or Ellipsis), and optionally the list of the output.

    Returns:
        Variable whose axes are the labels of the output.

    Raises:
        InvalidType: an operand does not have the axes of its subscripts, or axes with the same
            label differ in size.
        ValueError: the subscripts are invalid.

    Example:
        >>> F.einsum("ij,jk->ik", np.ones((2, 3)), np.ones((3, 4))).shape
        (2, 4)
        >>> F.einsum("ii", np.eye(3)).item()
        3.0
    """
    xs, inputs, output = _read(operands)
    inputs, output = _spelled_out(xs, inputs, output)
    sizes = _sizes(xs, inputs)
    terms = []
    for k, (x, labels) in enumerate(zip(xs, inputs)):
        kept = {i for other in (*inputs[:k], *inputs[k + 1 :], output) for i in other}
        terms.append(_simplified(x, labels, sizes, kept))
    while len(terms) > 1:
        j, k = _cheapest_pair(terms, output, sizes) if len(terms) > 2 else (0, 1)
        (b, lb), (a, la) = terms.pop(k), terms.pop(j)
        rest = {i for _, labels in terms for i in labels} | set(output)
        made = tuple(i for i in (*la, *(i for i in lb if i not in la)) if i in rest)
        made = made if terms else tuple(output)
        terms.append((_contract(a, b, (la, lb, made)), made))
    ((y, labels),) = terms
    order = tuple(labels.index(i) for i in output)
    return y if order == tuple(range(len(order))) else transpose(y, order)
