import json

import numpy as np
import pytest

import mpchain
from mpchain.gpu_doctor import ranks as gpu_ranks

COMM, CPU = mpchain.create_communicator(), mpchain.get_device("@numpy")


@pytest.mark.slow
@pytest.mark.parametrize("name", gpu_ranks.CHECKS)
def test_cpu_is_as_the_cpu(name):
    assert gpu_ranks.compare(gpu_ranks.CHECKS[name], COMM, CPU) == {"ok": True, "error": 0.0}


def test_the_worst_rank_counts(monkeypatch):
    monkeypatch.setattr(COMM, "allgather_obj", lambda error: [error, 0.5], raising=False)
    check = lambda comm, device: {"value": np.ones(3)}
    assert gpu_ranks.compare(check, COMM, CPU) == {"ok": False, "error": 0.5}


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        ("ranks 0 and 1 use the same GPU", {"ok": True, "error": 0.0}),
        ("invalid usage", {"ok": False, "error": "invalid usage"}),
        (None, {"ok": False, "error": "no error"}),
    ],
)
def test_refusal_of_one_gpu(message, answer):
    class Comm:
        def allreduce(self, x):
            if message is not None:
                raise RuntimeError(message)

    assert gpu_ranks.refusal_of_one_gpu(Comm(), CPU) == answer


@pytest.mark.gpu
def test_exception_is_printed_and_raised(monkeypatch, capsys):
    def check(comm, device):
        assert device.name == "@numpy", "not on GPUs"

    monkeypatch.setattr(gpu_ranks, "CHECKS", {"on CPUs only": check})
    with pytest.raises(AssertionError, match="not on GPUs"):
        gpu_ranks.run(COMM, share_gpu=False)
    found = json.loads(capsys.readouterr().out)
    assert found["name"] == "an exception" and not found["ok"]
    assert found["error"].startswith("rank 0: Traceback") and "not on GPUs" in found["error"]


@pytest.mark.gpu
def test_seconds_of_a_sum():
    assert gpu_ranks.seconds_of_a_sum(COMM, mpchain.get_device("@cupy:0"), 1 << 10) > 0
