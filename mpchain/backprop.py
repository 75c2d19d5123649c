"""Backpropagation: one walk over the graph, from outputs to leaves, that runs each function once.

The walk first counts how many gradients each function and each leaf will receive. Then it runs
functions whose gradients are complete; this needs no recursion and no sorting. A gradient is
released as soon as it has been used, and ``on_leaf`` is called with a leaf as soon as its gradient
is final. Contributions to a leaf that are sums over few rows, such as those to a recurrent
network's weights, are computed together.

Gradients are raw arrays. With ``enable_double_backprop``, they are Variables instead, and the
operations of the derivatives are recorded.
"""

import math
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from mpchain import row_gradients, variable
from mpchain.backends import cuda
from mpchain.configuration import config, using_config
from mpchain.gradient_memory import may_be_shared
from mpchain.kernels.cpu.loops import add_arrays
from mpchain.observers import Observer, current, span
from mpchain.typing import Array

_MOST_COLLECTED = 2
"""Contributions to a gradient are collected up to this multiple of its size."""


def backward(
    outputs: "Sequence[variable.Variable]",
    grad_outputs: "Sequence[variable.Variable | Array | None] | None" = None,
    *,
    enable_double_backprop: bool = False,
    on_leaf: "Callable[[variable.Variable], Any] | None" = None,
) -> None:
    """Backpropagates from several outputs at once, and accumulates gradients in the leaves.

    Args:
        outputs: list or tuple of Variables.
        grad_outputs: one gradient (or None) per output. By default, each output's ``grad_var`` is
            used (once for an output that is listed twice), and then released unless the output is
            a leaf. Outputs without a gradient contribute nothing.
        enable_double_backprop: whether to record the graph of the gradients.
        on_leaf: function that is called with each leaf variable as soon as its gradient is final.

    Raises:
        ValueError: ``outputs`` and ``grad_outputs`` differ in length, or a gradient has another
            shape than its output.

    Example:
        >>> x = Variable(np.array([2.0, 3.0]))
        >>> mpchain.backward([x * x, 10 * x], [np.ones(2), np.ones(2)])
        >>> x.grad
        array([14., 16.])
    """
    _check_variables("backward", "outputs", outputs)
    given = grad_outputs is not None
    if not given:
        outputs = list({y.node: y for y in outputs}.values())
        grad_outputs = [y.grad_var for y in outputs]
    if marked.exist:
        warn_of_marked("backward", outputs)
    seeds = _seeds("backward", outputs, grad_outputs, enable_double_backprop)
    _walk(seeds, enable_double_backprop, on_leaf=on_leaf)
    for y, gy in zip(outputs, grad_outputs):
        if y.creator_node is not None and not given:
            y.cleargrad()
        elif y.creator_node is None and given and gy is not None:
            y.accumulate_grad(variable.as_variable(gy))


def grad(
    outputs: "Sequence[variable.Variable]",
    inputs: "Sequence[variable.Variable]",
    grad_outputs: "Sequence[variable.Variable | None] | None" = None,
    grad_inputs: "Sequence[variable.Variable | None] | None" = None,
    set_grad: bool = False,
    retain_grad: bool = False,
    enable_double_backprop: bool | None = None,
    loss_scale: float | None = None,
) -> "list[variable.Variable | None]":
    """Returns the gradients of outputs with respect to any variables of their graph.

    Only functions between inputs and outputs are differentiated. By default, no variable's
    ``grad`` changes.

    Args:
        outputs: list or tuple of Variables.
        inputs: list or tuple of Variables.
        grad_outputs: one gradient (or None) per output; None means ones.
        grad_inputs: one gradient (or None) per input, to which the results are added.
        set_grad: whether to store the results in the inputs' ``grad_var``.
        retain_grad: whether to store gradients of intermediate variables in their ``grad_var``.
        enable_double_backprop: whether to record the graph of the gradients, so that they can be
            differentiated. If False, the gradients are constants. If None, they are constants too,
            but backpropagation warns once if a loss contains them.
        loss_scale: factor on the initial gradients.

    Returns:
        One gradient per input; None for an input that the outputs do not depend on, if
        ``grad_inputs`` has no gradient for it.

    Raises:
        RuntimeError: ``grad`` was called, and an output was computed, within
            :func:`no_backprop_mode`, which evaluators use.
        ValueError: two arguments differ in length, or a gradient has another shape than its output.

    Example:
        >>> x = Variable(np.array(3.0))
        >>> (gx,) = mpchain.grad([x**3], [x], enable_double_backprop=True)
        >>> (ggx,) = mpchain.grad([gx], [x])
        >>> gx.array, ggx.array
        (array(27.), array(18.))
    """
    _check_variables("grad", "outputs", outputs)
    _check_variables("grad", "inputs", inputs)
    if grad_outputs is None:
        grad_outputs = [None] * len(outputs)
    _check_lengths("grad", "grad_outputs", grad_outputs, "outputs", outputs)
    if grad_inputs is not None:
        _check_lengths("grad", "grad_inputs", grad_inputs, "inputs", inputs)
    grad_outputs = [_ones(y) if g is None else g for y, g in zip(outputs, grad_outputs)]
    if loss_scale is not None:
        grad_outputs = [g * loss_scale for g in grad_outputs]
    if marked.exist:
        warn_of_marked("grad", outputs)
    is_unsaid, enable_double_backprop = enable_double_backprop is None, bool(enable_double_backprop)
    seeds = _seeds("grad", outputs, grad_outputs, enable_double_backprop)
    found = _walk(seeds, enable_double_backprop, [x.node for x in inputs], retain_grad)
    results = [_as_variable(found.get(_key(x.node))) for x in inputs]
    if not config.enable_backprop and any(gx is None for gx in results):
        _check_graph(outputs)
    if is_unsaid and config.enable_backprop:
        mark(results)
    if grad_inputs is not None:
        with using_config("enable_backprop", enable_double_backprop):
            pairs = zip(results, grad_inputs)
            results = [b if a is None else a if b is None else a + b for a, b in pairs]
    if set_grad:
        for x, gx in zip(inputs, results):
            x.grad_var = gx
    return results


def _check_graph(outputs):
    """Raises RuntimeError if an output has no graph in no_backprop_mode."""
    for i, y in enumerate(outputs):
        if y.creator_node is None and y.requires_grad:
            raise RuntimeError(
                f"grad: outputs[{i}] has no graph in no_backprop_mode, which evaluators turn on: "
                "compute the output, and call grad, within mpchain.force_backprop_mode()"
            )


def backward_from(
    y: "variable.Variable",
    retain_grad: bool,
    enable_double_backprop: bool,
    loss_scale: float | None,
    on_leaf: "Callable[[variable.Variable], Any] | None",
) -> None:
    """Implements :meth:`Variable.backward`.

    Example:
        >>> x = Variable(np.array(3.0))
        >>> backward_from(x * x, False, False, None, lambda leaf: print(leaf.grad))
        6.0
    """
    # An array needs no Variable, unless the gradients get a graph.
    gy = None if enable_double_backprop else variable.own_grad(y)
    if gy is None and y.grad_var is None:
        if y.size > 1:
            raise ValueError(
                f"Variable.backward: y has more than one element (shape {y.shape}): "
                "set y.grad before calling backward"
            )
        y.grad_var = _ones(y, loss_scale)
    if on_leaf is not None and current.recorder is not None:
        current.recorder.backward(on_leaf)
    if marked.exist:
        warn_of_marked("Variable.backward", [y])
    gy = y.grad_var if gy is None else gy
    seeds = _seeds("Variable.backward", [y], [gy], enable_double_backprop)
    if y.creator_node is not None:
        _walk(seeds, enable_double_backprop, retain_grad=retain_grad, on_leaf=on_leaf)
        if not retain_grad:
            y.cleargrad()


def _ones(y, loss_scale=None):
    if type(y.array) is np.ndarray and not cuda.is_gpu_array(loss_scale):
        gy = np.empty_like(y.array)
        gy[...] = 1 if loss_scale is None else loss_scale
        return variable.Variable(gy, requires_grad=False)
    with cuda.get_device_from_array(y.array):
        if cuda.is_gpu_array(loss_scale):
            gy = y.xp.ones_like(y.array)
            gy *= loss_scale
        else:
            gy = y.xp.full_like(y.array, 1 if loss_scale is None else loss_scale)
    return variable.Variable(gy, requires_grad=False)


def _as_variable(value):
    if value is None or isinstance(value, variable.Variable):
        return value
    return variable.as_variable(variable.as_array(value))


def _check_variables(function, argument, values):
    if not isinstance(values, (list, tuple)):
        raise TypeError(
            f"{function}: {argument} must be a list or tuple of Variables, "
            f"not {type(values).__name__}"
        )
    for i, value in enumerate(values):
        if not isinstance(value, variable.Variable):
            raise TypeError(
                f"{function}: {argument}[{i}] must be a Variable, not {type(value).__name__}"
            )


def _check_lengths(function, name, values, other_name, others):
    if len(values) != len(others):
        raise ValueError(
            f"{function}: {name} and {other_name} must have the same length, "
            f"not {len(values)} and {len(others)}"
        )


def _seeds(function, outputs, grad_outputs, create_graph):
    """Returns pairs of a node and its initial gradient, which is a Variable if ``create_graph`` is
    True, else an array."""
    _check_lengths(function, "grad_outputs", grad_outputs, "outputs", outputs)
    seeds = []
    for i, (y, gy) in enumerate(zip(outputs, grad_outputs)):
        if gy is None or not y.requires_grad:
            continue
        if create_graph or gy.__class__ is not np.ndarray:
            gy = variable.as_variable(gy)
        if gy.shape != y.shape:
            raise ValueError(
                f"{function}: grad_outputs[{i}] must have the shape of its output: "
                f"gradient {gy.shape}, output {y.shape}"
            )
        seeds.append((y.node, gy if create_graph else variable.as_array(gy)))
    return seeds


def _key(node):
    """Returns the key of a variable in the walk: a function's output, or the leaf itself."""
    return node if node.creator_node is None else (node.creator_node, node.output_index)


def _walk(seeds, create_graph, wanted=None, retain_grad=False, on_leaf=None):
    """Backpropagates. Returns the gradients of the nodes in ``wanted``; if ``wanted`` is None, adds
    gradients to the leaves instead."""
    graph = using_config("enable_backprop", create_graph)
    if current.observers is None and "cupy" not in sys.modules:
        with graph:
            return _walked(seeds, create_graph, wanted, retain_grad, on_leaf)
    with span("backward", "backward"), graph, cuda.restored_device():
        return _walked(seeds, create_graph, wanted, retain_grad, on_leaf)


def _walked(*arguments):
    walk = _Walk(*arguments)
    walk.run()
    return walk.found


class _Walk:
    def __init__(self, seeds, create_graph, wanted, retain_grad, on_leaf):
        self.create_graph = create_graph
        self.on_leaf = on_leaf
        self.retain_grad = retain_grad
        self.found = {}
        self.wanted: Any = None if wanted is None else {_key(node) for node in wanted}
        roots = [node.creator_node for node, _ in seeds if node.creator_node is not None]
        # This maps each function to the indexes of its inputs that need gradients; None means that
        # all differentiable inputs do.
        self.targets = None
        self.leaves_recur = False  # This says whether a leaf may get several contributions.
        self.pending = self._count_all(roots)
        if wanted is not None and not self._leads_to_wanted_alone():
            self.pending = self._count_between(roots)
        # This maps a function to the gradients of its outputs, and a leaf to its gradient.
        self.gradients = {}
        # These keys have gradients that were summed here, so in-place additions to them are safe.
        self.sums = set()
        # The gradient arrays of these leaves may be referenced elsewhere.
        self.shared = set()
        self.collected = {}  # This maps a leaf to its contributions that will be computed together.
        for node, gy in seeds:
            creator = node.creator_node
            if creator is not None and creator.n_outputs == 1 and creator not in self.gradients:
                self.gradients[creator] = [gy]
            # For backward, the gradient of an output that is a leaf is set outside of the walk.
            elif creator is not None or wanted is not None:
                self._add(node, gy, shared=True)
        for node, _ in seeds:
            if node.creator_node is None and node not in self.pending:
                self._finish_leaf(node)

    def _count_all(self, roots):
        """Counts the gradients that each function and leaf below the roots will receive."""
        pending = dict.fromkeys(roots, 0)
        stack = list(pending)
        while stack:
            function = stack.pop()
            inputs = function.inputs
            for i in function.differentiable_inputs:
                node = inputs[i]
                creator = node.creator_node
                key = node if creator is None else creator
                if key not in pending:
                    pending[key] = 1
                    if creator is not None:
                        stack.append(creator)
                else:
                    pending[key] += 1
                    if creator is None:
                        self.leaves_recur = True
        return pending

    def _leads_to_wanted_alone(self):
        """Returns whether every leaf below the roots is wanted, so that every path leads to a
        wanted leaf."""
        leaves = (key for key in self.pending if isinstance(key, variable.VariableNode))
        return all(leaf in self.wanted for leaf in leaves)

    def _count_between(self, roots):
        """Counts as :meth:`_count_all` does, but only along the paths to the wanted variables.

        The walk is depth-first: a function follows all functions that it depends on, so its targets
        are known.
        """
        pending = dict.fromkeys(roots, 0)
        wanted, targets, entered, stack = self.wanted, {}, set(), list(pending)
        self.leaves_recur = True
        self.targets = targets
        while stack:
            function = stack[-1]
            inputs, indexes = function.inputs, function.differentiable_inputs
            if function not in entered:
                entered.add(function)
                for i in indexes:
                    creator = inputs[i].creator_node
                    if creator is not None and creator not in entered:
                        stack.append(creator)
                continue
            stack.pop()
            if function in targets:
                continue
            chosen = ()
            for i in indexes:
                node = inputs[i]
                creator = node.creator_node
                if creator is None:
                    key, leads = node, node in wanted
                else:
                    key = creator
                    leads = targets[creator] or (creator, node.output_index) in wanted
                if leads:
                    chosen += (i,)
                    pending[key] = pending.get(key, 0) + 1
            targets[function] = chosen
        return pending

    def run(self):
        pending, gradients, chosen = self.pending, self.gradients, self.targets
        create_graph, sums = self.create_graph, self.sums
        hooks, watches_all = config.function_hooks, config.debug or self.retain_grad
        watched = self.wanted and {key[0] for key in self.wanted if type(key) is tuple}
        watches = watches_all or watched
        ready, may_be_on_gpus = [k for k, n in pending.items() if n == 0], "cupy" in sys.modules
        while ready:
            function = ready.pop()
            gys = gradients.pop(function, None)
            if watches and gys is not None and (watches_all or function in watched):
                self._observe(function, gys)
            targets = function.differentiable_inputs if chosen is None else chosen[function]
            if not targets:
                continue
            if may_be_on_gpus and gys is not None:
                cuda.make_current(*gys)
            try:
                if gys is None:
                    gxs = (None,) * len(targets)
                elif hooks or function.local_function_hooks:
                    gxs = self._pull_observed(function, targets, gys, hooks)
                elif create_graph or function.row_sums or function.add_part is not None:
                    gxs = self._pull(function, targets, gys)
                else:
                    # In the usual case, _pull would call the same method.
                    gxs = function.pull_arrays(targets, gys)
            except Exception as error:
                error.add_note(f"(in the backward of {function.description()})")
                raise
            for i, gx in zip(targets, gxs):
                node = function.inputs[i]
                creator = node.creator_node
                if may_be_on_gpus:
                    cuda.make_current(gx)
                if gx is None:
                    pass
                elif creator is None:
                    # The body of _add is inlined for the usual cases.
                    if node in sums:
                        gradients[node] += gx
                    elif node in gradients:
                        self._add(node, gx, True)
                    else:
                        gradients[node] = gx
                        if not create_graph and may_be_shared(gx, gys, gxs, function):
                            self.shared.add(node)
                elif creator in gradients:
                    self._add(node, gx, True)
                elif creator.n_outputs == 1:
                    gradients[creator] = [gx]
                else:
                    gradients[creator] = entry = [None] * creator.n_outputs
                    entry[node.output_index] = gx
                key = node if creator is None else creator
                pending[key] = left = pending[key] - 1
                if not left and creator is None:
                    self._finish_leaf(node)
                elif not left:
                    ready.append(creator)

    def _pull(self, function, targets, gys):
        """Returns the gradients of the target inputs; None for contributions that were collected or
        have been added already."""
        if self.create_graph:
            return function.pull_variables(targets, gys)
        if function.add_part is not None and self._adds_part(function, gys[0]):
            return [None]
        if not (function.row_sums and (self.leaves_recur or function.row_gradients)):
            return function.pull_arrays(targets, gys)
        others, sums = [], {}
        for i in targets:
            if not (i in function.row_sums and self._collect(function, i, gys, sums)):
                others.append(i)
        if others:
            sums.update(zip(others, function.pull_arrays(others, gys)))
        return [sums[i] for i in targets]

    def _adds_part(self, function, gy):
        """Adds a gradient of a part, such as a slice, to the gradient of the whole, if earlier
        contributions were summed here. Returns whether the gradient was added."""
        node = function.inputs[0]
        creator = node.creator_node
        if creator is None:
            return False
        entry, place = self.gradients.get(creator), (creator, node.output_index)
        whole = None if entry is None else entry[node.output_index]
        if whole is not None:
            return place in self.sums and function.add_part(whole, gy, *function.constants)
        if function.add_part(None, gy, *function.constants):
            self.sums.add(place)  # the derivative makes a new array
        return False

    def _collect(self, function, i, gys, sums):
        """Collects a contribution to a leaf that receives several, if it is a sum over few rows.

        ``sums[i]`` becomes None. If the contribution is the last one, or many have been collected,
        ``sums[i]`` becomes the sum of the collected contributions, or None if the leaf received
        rows. If the contribution is the only one, the leaf receives its rows if possible. Returns
        whether the contribution was collected or received as rows.
        """
        node, pending = function.inputs[i], self.pending
        if node.creator_node is not None:
            return False
        if pending[node] == 1 and node not in self.collected:
            if not self._keeps_rows(node, function, i, lambda: function.row_arguments(i, gys)):
                return False
            sums[i] = None
            return True
        arguments = function.row_arguments(i, gys)
        arrays = [x for x in arguments if hasattr(x, "dtype")]
        size, least = sum(x.size for x in arrays), math.prod(node.shape)
        n_rows = {x.shape[:1] for x in arrays}
        if size > least or len(n_rows) > 1 or () in n_rows:
            return False
        key = type(function), i, [(x.shape[1:], x.dtype) for x in arrays]
        if node in self.collected and self.collected[node][0] != key:
            self._add(node, self._sum_collected(node), False)
        _, collected = self.collected.setdefault(node, (key, []))
        collected.append((function, arguments))
        is_last = pending[node] == 1
        is_enough = is_last or size * len(collected) > _MOST_COLLECTED * least
        sums[i] = self._sum_collected(node, is_last) if is_enough else None
        return True

    def _keeps_rows(self, node, function, i, find_arguments):
        """Gives a leaf only the nonzero rows of its gradient if possible. Returns whether the leaf
        received rows."""
        return (
            i in function.row_gradients
            and self.wanted is self.on_leaf is None
            and node not in self.gradients
            and row_gradients.give_rows(node, function.row_gradients[i], find_arguments)
        )

    def _sum_collected(self, node, is_last=False):
        """Returns the sum of a leaf's collected contributions; None if the leaf received rows."""
        (_, i, _), collected = self.collected.pop(node)
        functions, arguments = zip(*collected)
        cuda.make_current(*(x for x in arguments[0] if hasattr(x, "dtype")))
        xp = cuda.get_array_module(arguments[0][0])
        joined = [xp.concatenate(v) if hasattr(v[0], "dtype") else v[0] for v in zip(*arguments)]
        if is_last and self._keeps_rows(node, functions[0], i, lambda: joined):
            return None
        return functions[0].row_sum(i, joined)

    def _pull_observed(self, function, targets, gys, hooks):
        """Runs a function's derivative, and notifies observers and hooks."""
        observers = current.of_functions
        begun = [observer.differentiates(function) for observer in observers]
        if len(observers) < len(hooks) or function.local_function_hooks:
            gxs = self._pull_with_hooks(function, targets, gys, hooks)
        else:
            gxs = self._pull(function, targets, gys)
        for observer in reversed(observers):
            observer.differentiated(function, begun.pop())
        return gxs

    def _pull_with_hooks(self, function, targets, gys, hooks):
        """Runs the derivative between the hooks' preprocess and postprocess calls."""
        hooks = [x for x in hooks.values() if not isinstance(x, Observer)]
        hooks += function.local_function_hooks.values()
        seen = function.shown_to_hooks()
        if seen is None:
            return self._pull(function, targets, gys)
        shown, in_data = seen
        out_grad = tuple([g if g is None else g.array for g in gys] if self.create_graph else gys)
        for hook in hooks:
            hook.backward_preprocess(shown, in_data, out_grad)
        gxs = self._pull(function, targets, gys)
        for hook in hooks:
            hook.backward_postprocess(shown, in_data, out_grad)
        return gxs

    def _add(self, node, gx, shared):
        """Adds a contribution to the gradient of ``node``."""
        creator = node.creator_node
        if creator is None:
            entry, index, place = self.gradients, node, node
        else:
            entry = self.gradients.get(creator)
            if entry is None:
                entry = self.gradients[creator] = [None] * creator.n_outputs
            index, place = node.output_index, (creator, node.output_index)
        old = entry.get(node) if creator is None else entry[index]
        if old is None:
            entry[index] = gx
            if shared:
                self.shared.add(node)
        elif self.create_graph:
            entry[index] = old + gx
        elif place in self.sums:
            old += gx
            entry[index] = old
        else:
            entry[index] = variable.as_array(add_arrays(old, gx))
            self.sums.add(place)
            self.shared.discard(node)

    def _finish_leaf(self, node):
        if node in self.collected:
            self._add(node, self._sum_collected(node), False)
        gx = self.gradients.pop(node, None)
        if gx is None:
            return
        if not self.create_graph and node in self.shared:
            gx = gx.copy()
        if self.wanted is not None:
            if node in self.wanted:
                self.found[node] = gx
            return
        leaf = node.get_variable_or_none()
        if leaf is None:
            return
        leaf.accumulate_grad(gx)
        if self.on_leaf is not None:
            self.on_leaf(leaf)

    def _observe(self, function, gys):
        """Stores wanted and retained gradients of a function's outputs; in debug mode, checks all
        gradients of the outputs for NaN."""
        for i, gy in enumerate(gys):
            if gy is None:
                continue
            if self.wanted is not None and (function, i) in self.wanted:
                self.found[function, i] = gy if self.create_graph else gy.copy("K")
            if self.retain_grad:
                node = function.outputs[i]()
                y = node and node.get_variable_or_none()
                if y is not None:
                    y.grad_var = _as_variable(gy)
            if config.debug:
                function.check_nan((gy.array if self.create_graph else gy,), "backward")


_REMEDY = (
    "call grad with enable_double_backprop=True to differentiate through the result, or with "
    "enable_double_backprop=False to use the result as a constant without this warning"
)


class _Marked:
    """Results of ``grad`` that were computed without a graph, and constants computed from them."""

    nodes = weakref.WeakSet()
    exist = False  # If this is False, no node is marked.
    has_warned = False  # No more nodes are marked after the warning.


marked = _Marked()


def mark(variables: "Iterable[variable.Variable | None]") -> None:
    """Marks results of ``grad`` that have no graph; :func:`warn_of_marked` warns if a loss depends
    on them.

    A program that forgets ``enable_double_backprop`` trains with a wrong gradient. Functions whose
    inputs are all constants pass the mark on, and backpropagation looks for marks until it has
    warned once.

    >>> x = Variable(np.array(3.0))
    >>> (gx,) = mpchain.grad([x**2], [x])
    >>> gx.node in marked.nodes
    True
    """
    for x in variables:
        if x is not None and not marked.has_warned:
            marked.nodes.add(x.node)
            marked.exist = True


def pass_on(inputs: "Iterable[variable.Variable]", outputs: "Iterable[variable.Variable]") -> None:
    """Marks outputs of a function that has no differentiable input if an input is marked."""
    if any(x._node is not None and x._node in marked.nodes for x in inputs):
        mark(outputs)


def warn_of_marked(function: str, outputs: "Iterable[variable.Variable]") -> None:
    """Warns if outputs depend on a marked variable; a process warns at most once.

    Args:
        function: the name of the function that backpropagates, for the message.
        outputs: the Variables from which it backpropagates.
    """
    marked.exist = bool(marked.nodes)  # The marked results may have been freed.
    if not marked.exist:
        return
    nodes = [y.node for y in outputs]
    seen = {node.creator_node for node in nodes} - {None}
    stack = list(seen)
    while stack:
        inputs = stack.pop().inputs
        nodes += inputs
        new = {node.creator_node for node in inputs} - {None} - seen
        seen |= new
        stack += new
    if not marked.nodes.isdisjoint(nodes):
        marked.exist, marked.has_warned = False, True
        marked.nodes.clear()
        warnings.warn(
            f"{function}: a result of grad without its graph counts as a constant here: {_REMEDY}",
            UserWarning,
            stacklevel=levels_to_user(),
        )


def levels_to_user() -> int:
    """Returns the ``stacklevel`` by which a warning shows the line of the program that called
    mpchain.

    >>> levels_to_user()
    1
    """
    frame, levels = sys._getframe(1), 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith("mpchain."):
        frame, levels = frame.f_back, levels + 1
    return levels
