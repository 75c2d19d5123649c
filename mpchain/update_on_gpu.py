"""Updates of many parameters on a GPU by one kernel."""

from collections.abc import Sequence

from mpchain.backends.dtypes import is_half
from mpchain.kernels.gpu.cuda_steps import take_steps
from mpchain.variable import Parameter


def update_group_on_gpu(params: Sequence[Parameter]) -> None:
    """Updates parameters on a GPU whose rules take the same step with the same numbers.

    Float32 copies of half-precision parameters are updated, and rounded, by the same kernel.

    Example:
        >>> update_group_on_gpu([model.W, model.b])  # doctest: +SKIP
    """
    rules, updated = [param.update_rule for param in params], params
    has_copies = rules[0]._use_fp32_update and is_half(params[0].dtype)
    with params[0].device.create_context():
        if has_copies:
            updated = [r.copy_of(param) for r, param in zip(rules, params, strict=True)]
        for rule, param in zip(rules, updated, strict=True):
            rule.prepare(param)
        written = [[param.array for param in updated]]
        written += [[rule.state[name] for rule in rules] for name in rules[0].states]
        grads = [x.grad if x.grad is not None else p.grad for x, p in zip(updated, params)]
        halves = [param.array for param in params] if has_copies else []
        if not take_steps(rules[0].step, written, grads, rules[0]._scalars_after, halves):
            for rule, param in zip(rules, params, strict=True):
                copy = rule.updated_param(param)
                rule.update_core(copy)
                if has_copies:
                    param.array[...] = copy.array
        if has_copies:
            for copy in updated:
                copy.cleargrad()
