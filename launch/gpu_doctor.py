"""Tests the GPUs of this host: programs of :mod:`mpchain.gpu_doctor` compare them with the CPU, and
their times with PyTorch's.
"""

import json
import sys

from . import inquiry, mpirun
from .findings import FAILURE, NOTE, OK, Finding

TIME_TO_CHECK = 600.0  # CuPy compiles each kernel at its first use
TIME_TO_MEASURE = 600.0
TIME_OF_RANKS = 300
SHARED = "NCCL_MULTI_RANK_GPU_ENABLE=1"  # NCCL's own variable
VERSIONS = ("mpchain", "GPU", "CUDA driver", "CUDA runtime", "CuPy", "NCCL")


def check_gpu(path: str) -> list[Finding]:
    """Returns the findings about GPUs: functions and trainings on the first GPU, then two ranks,
    compared with the CPU; times of training steps, compared with PyTorch.

    Each part runs in processes that begin anew, as a GPU may refuse all work after an error.

    Args:
        path: A file for all that was found, versions included, as JSON.

    Example:
        >>> check_gpu("gpu.json")  # doctest: +SKIP
    """
    open(path, "w", encoding="utf-8").close()  # rather fail now than at the end
    lines, failure, messages = _run(["-m", "mpchain.gpu_doctor.check"], TIME_TO_CHECK)
    found = lines[-1] if lines else {"reason": f"the check did not end: {failure}"}
    found["messages"] = {"check": messages}
    if "checks" in found:
        findings = _judge_versions(found["versions"]) + _judge_names(found.get("contract"), path)
        findings += [_judge(name, each, path) for name, each in found["checks"].items()]
        findings += _check_ranks(found, path)
        findings += _measure_speed(found, path)
    else:
        findings = [Finding("GPU", FAILURE, "none that works", found["reason"])]
    with open(path, "w", encoding="utf-8") as file:
        json.dump(found, file, indent=2)
    return findings


def _run(arguments, timeout):
    """Runs Python; returns the objects that it prints as JSON, why it failed, and its messages."""
    command = [*inquiry.with_own_path(), sys.executable, *arguments]
    ((code, output, messages),) = inquiry.run_on_all({"": command}, timeout).values()
    lines = []
    for line in output.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue  # another library's words
    failure = (messages.strip().rpartition("\n")[2] or f"exit code {code}") if code != 0 else ""
    return [line for line in lines if isinstance(line, dict)], failure, messages


def _judge_versions(lines):
    versions = dict(line.strip().partition(": ")[::2] for line in lines)
    findings = [Finding(name, OK, versions[name]) for name in VERSIONS if name in versions]
    if "convolution" not in versions:
        return findings
    plans, reason = versions["convolution"] == "planned", versions["convolution"]
    hint = "" if plans else f"{reason}; slower kernels run instead"
    return [*findings, Finding("cuDNN", OK if plans else NOTE, versions["cuDNN"], hint)]


def _judge_names(differences, path):
    """Returns the finding about CuPy's names, if these were compared."""
    if differences is None:
        return []
    if not differences:
        return [Finding("CuPy's names", OK, "those that mpchain is tested against")]
    found = f"{len(differences)} are not as mpchain is tested against"
    hint = f"these matter only if a check fails; {differences[0]}; all are in {path}"
    return [Finding("CuPy's names", NOTE, found, hint)]


def _judge(name, check, path, failed=FAILURE):
    if "seconds" in check:
        return Finding(name, OK, f"{1e3 * check['seconds']:.3g} ms")
    if check["ok"]:
        return Finding(name, OK, f"as on the CPU, to {check['error']:.0e} of the largest number")
    if isinstance(check["error"], str):
        reason = check["error"].strip().rpartition("\n")[2]
        return Finding(name, failed, "an exception", f"{reason}; the traceback is in {path}")
    found = f"differs from the CPU by {check['error']:.0e} of the largest number"
    return Finding(name, failed, found, f"please report it, with {path}")


def _check_ranks(found, path):
    """Returns the findings about two ranks, and adds to what is written what they print."""
    try:
        if not mpirun.find():
            raise mpirun.UnknownMpirunError(f"it needs mpirun: {mpirun.INSTALL}")
    except mpirun.UnknownMpirunError as error:
        return [Finding("two ranks", NOTE, "not tested", str(error))]
    if found["GPUs"] > 1:
        return _start_ranks("two ranks", found, path)
    findings = _start_ranks("two ranks, one GPU", found, path)
    return findings + _start_ranks("two ranks, NCCL on one GPU", found, path, SHARED)


def _start_ranks(name, found, path, variable=None):
    # With one GPU, NCCL works or refuses; neither is a fault.
    failed = NOTE if variable else FAILURE
    launcher = ["-m", __package__, "-n", "2", "--no-prefix", f"--timeout={TIME_OF_RANKS}"]
    launcher += ["--env", variable] * bool(variable)
    program = [*launcher, "-m", "mpchain.gpu_doctor.ranks"]
    lines, failure, found["messages"][name] = _run(program, TIME_OF_RANKS + 60)
    found[name] = lines
    findings = [_judge(f"{name}: {line['name']}", line, path, failed) for line in lines]
    if failure and not any(finding.verdict == failed for finding in findings):
        findings.append(Finding(name, failed, "did not end", f"{failure}; see {path}"))
    return findings


def _measure_speed(found, path):
    """Returns the findings about times, and adds them to what is written."""
    programs = {"mpchain": [], "PyTorch": ["pytorch"]}
    rows = {}
    for name, arguments in programs.items():
        program = ["-m", "mpchain.gpu_doctor.speed", *arguments]
        rows[name], failure, messages = _run(program, TIME_TO_MEASURE)
        rows[name] += [{"reason": failure}] * bool(failure)
        found["messages"][f"speed of {name}"] = messages
    found["speed"] = rows
    others = {row["name"]: row for row in rows["PyTorch"] if "name" in row}
    findings = [
        _judge_speed(row, others.get(row["name"]), found, path)
        for row in rows["mpchain"]
        if "name" in row
    ]
    for name in programs:
        for row in rows[name]:
            if "reason" in row:
                findings.append(Finding(f"speed of {name}", NOTE, "not measured", row["reason"]))
    return findings


def _judge_speed(row, other, found, path):
    item = f"training step: {row['name']}"
    if "error" in row:
        return _judge(item, {"ok": False, **row}, path)
    text = _times(row)
    if other is not None:
        text += f"; PyTorch {_times(other)}"
    if found["is a double"]:
        return Finding(item, NOTE, text, "not times of a GPU: CuPy is the double of the tests")
    return Finding(item, OK, text)


def _times(row):
    if "error" in row:
        return "raises " + row["error"].strip().rpartition("\n")[2]
    times = row["milliseconds"]
    return f"{times['step']:.3g} ms ({times['host']:.3g} ms of the host)"
