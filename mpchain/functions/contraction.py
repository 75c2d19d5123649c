"""Contractions: products of arrays summed over axes that they share."""

import itertools
import math
import string

import numpy as np

from mpchain.backends.cuda import get_array_module
from mpchain.functions.array import reshape, sum_to, swapaxes, transpose
from mpchain.functions.declaration import differentiable
from mpchain.functions.indexing import get_item
from mpchain.functions.reduction import sum
from mpchain.utils.type_check import check
from mpchain.variable import as_variable


def _multiplied(a, b):
    """Stacks of matrices multiplied, those of half precision with sums in single precision."""
    if a.dtype == np.float16:
        return np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(np.result_type(a, b))
    return np.matmul(a, b)


@differentiable(
    lambda g, b, a_shape: sum_to.on(np.matmul(g, np.swapaxes(b, -1, -2)), a_shape),
    lambda g, a, b_shape: sum_to.on(np.matmul(np.swapaxes(a, -1, -2), g), b_shape),
)
def _matrix_product(a, b):
    return _multiplied(a, b)


def _broadcast(shape0, shape1):
    pairs = zip(reversed(shape0), reversed(shape1))
    return all(m == n or m == 1 or n == 1 for m, n in pairs)


def matmul(a, b, transa=False, transb=False):
    """Matrix product of two arrays, or of two stacks of matrices that broadcast.

    Args:
        a: Variable or array (..., n, k), or (k,).
        b: Variable or array (..., k, m), or (k,).
        transa, transb (bool): swap the last two axes of ``a`` or ``b`` first.

    Returns:
        Variable (..., n, m), without the axis that a vector argument lacks.

    Raises:
        InvalidType: an argument is 0-d, or the inner sizes differ.
    """
    a, b = as_variable(a), as_variable(b)
    check(a.ndim > 0 and b.ndim > 0, "matmul", "a and b need at least one axis", a=a, b=b)
    rows = (-2,) if a.ndim == 1 else ()
    columns = (-1,) if b.ndim == 1 else ()
    a = reshape(a, (1, a.size)) if rows else swapaxes(a, -1, -2) if transa else a
    b = reshape(b, (b.size, 1)) if columns else swapaxes(b, -1, -2) if transb else b
    inner = "the last axis of a (the one before with transa) must equal the last but one of b"
    check(a.shape[-1] == b.shape[-2], "matmul", inner, a=a, b=b, transa=transa, transb=transb)
    if a.ndim > 2 and b.ndim > 2 and a.shape[:-2] != b.shape[:-2]:
        stacks = "the stacks of matrices must broadcast"
        check(_broadcast(a.shape[:-2], b.shape[:-2]), "matmul", stacks, a=a, b=b)
    y = _matrix_product(a, b)
    if not rows and not columns:
        return y
    added = rows + columns
    return reshape(y, tuple(n for i, n in enumerate(y.shape) if i - y.ndim not in added))


def batch_matmul(a, b, transa=False, transb=False):
    """Matrix products of the pairs of two batches.

    Args:
        a: Variable or array (B, n, k), or (B, n) for columns (B, n, 1).
        b: Variable or array (B, k, m), or (B, k) for columns (B, k, 1).
        transa, transb (bool): transpose the matrices of ``a`` or ``b`` first.

    Returns:
        Variable (B, n, m).

    Raises:
        InvalidType: ranks or sizes do not fit.
    """
    known = a.ndim in (2, 3) and b.ndim in (2, 3)
    check(known, "batch_matmul", "a and b must have 2 or 3 axes", a=a, b=b)
    a, b = (reshape(x, (*x.shape, 1)) if x.ndim == 2 else x for x in (a, b))
    return matmul(a, b, transa, transb)


# A pair of operands is one bilinear form <g, a b> in three arrays whose axes are labeled: leaving
# any slot open contracts the other two, and each label stands in two slots at least.


@differentiable(
    lambda g, b, labels: _contract.on(g, b, (labels[2], labels[1], labels[0])),
    lambda g, a, labels: _contract.on(g, a, (labels[2], labels[0], labels[1])),
)
def _contract(a, b, labels):
    """Multiplies and sums over the labels that the third of ``labels``, the result's, lacks."""
    la, lb, out = labels
    size = dict(zip(la, a.shape)) | dict(zip(lb, b.shape))
    batch = [i for i in la if i in lb and i in out]
    summed = [i for i in la if i in lb and i not in out]
    rows, columns = [i for i in la if i not in lb], [i for i in lb if i not in la]

    def stack(x, have, *groups):
        x = x.transpose([have.index(i) for group in groups for i in group])
        return x.reshape([math.prod(size[i] for i in group) for group in groups])

    a, b = stack(a, la, batch, rows, summed), stack(b, lb, batch, summed, columns)
    y = _multiplied(a, b) if summed else a * b
    made = [*batch, *rows, *columns]
    return y.reshape([size[i] for i in made]).transpose([made.index(i) for i in out])


def tensordot(a, b, axes=2):
    """Sums products over axes of two arrays; the remaining axes of ``a``, then of ``b``, stay.

    Args:
        a, b: Variables or arrays.
        axes (int or pair): the last ``axes`` axes of ``a`` with the first of ``b``; or the axes of
            ``a`` and those of ``b``, each an integer or a sequence of them.

    Returns:
        Variable.

    Raises:
        InvalidType: there are no such axes, or their sizes differ.
        ValueError: ``axes`` is neither a number nor a pair of equally many axes.
    """
    a, b = as_variable(a), as_variable(b)
    if isinstance(axes, (int, np.integer)):
        fits = 0 <= axes <= min(a.ndim, b.ndim)
        check(fits, "tensordot", "a and b must have as many axes", a=a, b=b, axes=axes)
        axes = range(a.ndim - axes, a.ndim), range(axes)
    axes = [(x,) if isinstance(x, (int, np.integer)) else tuple(x) for x in axes]
    if len(axes) != 2 or len(axes[0]) != len(axes[1]):
        raise ValueError(f"tensordot: axes must pair axes of a with axes of b, but is {axes}")
    for x, of_x in zip((a, b), axes):
        known = all(-x.ndim <= i < x.ndim for i in of_x)
        check(
            known and len({i % x.ndim for i in of_x}) == len(of_x),
            "tensordot",
            "axes must be different axes of a and of b",
            a=a,
            b=b,
            axes=axes,
        )
    pairs = {j % b.ndim: i % a.ndim for i, j in zip(*axes)}
    alike = all(a.shape[i] == b.shape[j] for j, i in pairs.items())
    check(alike, "tensordot", "the axes must have equal sizes", a=a, b=b, axes=axes)
    la, lb = tuple(range(a.ndim)), tuple(pairs.get(j, a.ndim + j) for j in range(b.ndim))
    return _contract(a, b, (la, lb, tuple(i for i in (*la, *lb) if (i in la) != (i in lb))))


def _labels_of_text(text):
    """The labels of each operand of 'ij,jk->ik', and those of the output, None if not written."""
    inputs, arrow, output = text.replace(" ", "").partition("->")

    def labels(term):
        found = [Ellipsis if c == "." else c for c in term.replace("...", ".")]
        if any(i is not Ellipsis and i not in string.ascii_letters for i in found):
            raise ValueError(f"einsum: {text!r} holds {term!r}: labels must be letters or '...'")
        return found

    return [labels(term) for term in inputs.split(",")], labels(output) if arrow else None


def _read(operands):
    """Returns the arrays, their lists of labels, and those of the output or None."""
    if operands and isinstance(operands[0], str):
        inputs, output = _labels_of_text(operands[0])
        xs = operands[1:]
    else:
        n = len(operands) // 2 * 2
        xs, inputs = operands[0:n:2], [list(labels) for labels in operands[1:n:2]]
        output = list(operands[n]) if len(operands) > n else None
    if not xs or len(xs) != len(inputs):
        raise ValueError(f"einsum: there are {len(xs)} operands, but subscripts of {len(inputs)}")
    return [as_variable(x) for x in xs], inputs, output


def _spelled_out(xs, inputs, output):
    """Gives the axes of every ellipsis labels of their own, and the output if it is not written."""
    rest = [x.ndim - len(labels) + labels.count(...) for x, labels in zip(xs, inputs)]
    for x, labels, n in zip(xs, inputs, rest):
        fits = n == 0 if ... not in labels else n >= 0 and labels.count(...) == 1
        check(fits, "einsum", f"the operand must have the axes {labels}", operand=x)
    ellipsis = [("...", i) for i in range(-max(rest), 0)]
    named = [i for labels in inputs for i in labels if i is not ...]
    if output is None:
        output = [..., *sorted(i for i in set(named) if named.count(i) == 1)]
    if ellipsis and ... not in output:
        raise ValueError("einsum: the axes of '...' cannot be summed: the output must have '...'")
    wrong = [i for i in output if output.count(i) > 1 or (i is not ... and i not in named)]
    if wrong:
        raise ValueError(f"einsum: the output must have labels of operands, once: {wrong[0]!r}")

    def spell(labels, n):
        return [j for i in labels for j in (ellipsis[len(ellipsis) - n :] if i is ... else [i])]

    return [spell(labels, n) for labels, n in zip(inputs, rest)], spell(output, len(ellipsis))


def _sizes(xs, inputs):
    """The size of each label; in an ellipsis, axes of size one broadcast."""
    sizes = {}
    for x, labels in zip(xs, inputs):
        for i, n in zip(labels, x.shape):
            known = sizes.setdefault(i, n)
            if isinstance(i, tuple) and 1 in (known, n):
                sizes[i] = known if n == 1 else n
            else:
                rule = f"axes labeled {i!r} must have one size, {known}"
                check(known == n, "einsum", rule, operand=x)
    return sizes


def _simplified(x, labels, sizes, kept):
    """Drops the axes to broadcast, takes diagonals, and sums over labels that nothing else has."""
    shape = [n for i, n in zip(labels, x.shape) if n == sizes[i]]
    labels = [i for i, n in zip(labels, x.shape) if n == sizes[i]]
    x = reshape(x, tuple(shape))
    for i in {i: None for i in labels if labels.count(i) > 1}:
        places = [axis for axis, j in enumerate(labels) if j == i]
        others = [axis for axis, j in enumerate(labels) if j != i]
        every = get_array_module(x).arange(sizes[i])
        x = get_item(transpose(x, (*places, *others)), (every,) * len(places))
        labels = [i, *(labels[axis] for axis in others)]
    lone = tuple(axis for axis, i in enumerate(labels) if i not in kept)
    return (sum(x, lone) if lone else x), tuple(i for i in labels if i in kept)


def _cheapest_pair(terms, output, sizes):
    """The pair of terms whose product is the smallest compared with themselves."""

    def growth(pair):
        rest = {i for k, (_, labels) in enumerate(terms) if k not in pair for i in labels}
        first, second = (set(terms[k][1]) for k in pair)
        sets = (first | second) & (rest | set(output)), first, second
        made, *used = (math.prod(sizes[i] for i in labels) for labels in sets)
        return made - used[0] - used[1]

    return min(itertools.combinations(range(len(terms)), 2), key=growth)


def einsum(*operands):
    """Sums of products over labeled axes, in Einstein's notation.

    ``einsum("ij,jk->ik", a, b)`` is the matrix product; so is
    ``einsum(a, [0, 1], b, [1, 2], [0, 2])``. Labels that the output lacks are summed over; a label
    twice in one operand takes its diagonal; ``...`` stands for all other axes, which broadcast.
    Without an output, that has the axes of ``...`` and then the labels that occur once, sorted.
    Operands are multiplied in pairs, those first whose product is small, as matrix products.

    Args:
        operands: the subscripts and then the Variables or arrays; or each of these followed by its
            list of labels (integers, or Ellipsis), and at the end, if wanted, that of the output.

    Returns:
        Variable.

    Raises:
        InvalidType: the operands do not have the axes that the subscripts say.
        ValueError: the subscripts contradict themselves.
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
