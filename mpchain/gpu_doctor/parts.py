"""``python -m mpchain.gpu_doctor.parts [--after NAME] PART [ARGUMENT ...]`` runs a part of the GPU
doctor.

Each result is a line of JSON, which is printed at once. A line before the result names the check
that begins, so that the caller knows which check was running if the program dies. ``--after NAME``
skips all results up to the result NAME. ``plan`` prints the parts in order: fast and decisive parts
come first.

``mpchain-launch doctor --gpu FOLDER`` runs the parts.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from mpchain.backends import cuda
from mpchain.gpu_doctor import check, kernels, machine, speed
from mpchain.testing.kernel_cases import CASES

GPU_IS_LOST = 3
"""The exit code after an error that makes the GPU unusable for this process."""

_CHECK, _CASES, _STEP = 90, 60, 90  # the number of seconds to wait for a result


def _checks(name: str) -> Iterator[machine.Item]:
    yield name, lambda: check.compare(check.CHECKS[name], "@cupy:0")
    if cuda.device_count() > 1 and name in check.ON_SECOND:
        yield f"{name}, on the second GPU", lambda: check.compare(check.CHECKS[name], "@cupy:1")


def _captured(name: str) -> Iterator[machine.Item]:
    yield f"captured steps of {name}", lambda: check.compare_captured(name, "@cupy:0")


PARTS: dict[str, Callable[..., Iterator[machine.Item]]] = {
    "machine": machine.machine,
    "basics": machine.basics,
    "check": _checks,
    "captured": _captured,
    "cases": kernels.cases,
    "speeds": kernels.speeds,
    "plans": machine.plans,
    "nccl": machine.nccl,
    "step": speed.own_steps,
    "torch": speed.torch_steps,
    "command": machine.command,
}
"""Maps the name of a part to a function of its arguments that yields the items to find."""


def plan(is_double: bool = False) -> Iterator[dict[str, Any]]:
    """Yields the parts in the order in which the doctor runs them.

    Args:
        is_double: whether the plan is for the test double, whose times are meaningless.

    Yields:
        dict: the ``title`` of a part; the ``arguments`` of this program; the ``limit`` of seconds
        for each result; and ``at_once``, whether other parts may run at the same time.

    Example:
        >>> [row["title"] for row in plan()][:3]
        ['machine', 'basics', 'check: elementwise']
    """

    def row(limit, at_once, *arguments):
        title = ": ".join([arguments[0], ", ".join(arguments[1:])][: len(arguments)])
        return {"title": title, "arguments": arguments, "limit": limit, "at_once": at_once}

    yield row(60, False, "machine")
    yield row(60, False, "basics")
    yield from (row(_CHECK, True, "check", name) for name in check.CHECKS)
    yield from (row(_CHECK, True, "captured", name) for name in check.MODELS)
    yield from (row(60, True, name) for name in ("plans", "nccl"))
    yield row(60, False, "speeds")
    yield from (row(_CASES, True, "cases", operation) for operation in CASES)
    precisions = [*speed.PRECISIONS]
    for name in speed.SIZES:
        for precision in precisions[:: 2 if is_double else 1]:
            for mode in ("eager", "captured"):
                yield row(_STEP, is_double, "step", name, precision, mode)
            yield row(_STEP, is_double, "torch", name, precision, "eager")
            if name == "ResNet-50":
                yield row(_STEP, is_double, "torch", name, precision, "channels last")


def _is_gpu_lost():
    if not cuda.available:
        return False
    try:
        cuda.cupy.cuda.Device().synchronize()
    except Exception:  # any error of the library means that later calls fail, too
        return True
    return False


def main(words: list[str]) -> int:
    """Prints the results of a part.

    Returns:
        The exit code.

    Example:
        >>> main(["captured", "MLP"])  # doctest: +SKIP
        {"begin": "captured steps of MLP"}
        {"name": "captured steps of MLP", "ok": true, "error": 0.0}
    """
    parser = argparse.ArgumentParser(prog="python -m mpchain.gpu_doctor.parts")
    parser.add_argument("--after", metavar="NAME")
    parser.add_argument("part", choices=["plan", *PARTS])
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(words)
    if given.part == "plan":
        for row in plan(*map(bool, given.arguments)):
            print(json.dumps(row), flush=True)
        return 0
    is_passed = given.after is None
    for name, find in PARTS[given.part](*given.arguments):
        if is_passed:
            print(json.dumps({"begin": name}), flush=True)
            found = check.outcome(find)
            print(json.dumps({"name": name, **found}), flush=True)
            if found.get("ok") is False and _is_gpu_lost():
                return GPU_IS_LOST
        is_passed = is_passed or name == given.after
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
