import numpy as np
import pytest

import mpchain
from mpchain.gpu_doctor import check as gpu_check
from mpchain.testing import attr


@pytest.mark.parametrize("name", gpu_check.CHECKS)
def test_cpu_is_as_the_cpu(name):
    if name == "MLP, mixed_bf16":
        pytest.importorskip("ml_dtypes")
    found = gpu_check.compare(gpu_check.CHECKS[name], "@numpy")
    assert found == {"ok": True, "error": 0.0}


def test_what_is_most_likely_to_fail_is_tried():
    parts = ["dropout", "embedding, half", "embedding, deterministic", "dynamic loss scale"]
    parts += ["mixed_bf16", "TF32", "double precision", "transposed", "group normalization"]
    parts += ["rows of 3,000, half", "more than 2**31", "by cuDNN", "on another stream"]
    for part in parts:
        assert any(part in name for name in gpu_check.CHECKS), part
    assert gpu_check.MODELS.keys() == {"MLP", "ConvNet", "LSTM", "transformer"}


def altered(deed):
    """Returns a check whose result is wrong in every call except the first."""
    calls = []

    def check(device_name):
        calls.append(device_name)
        value = {"value": np.array([1.0, -4.0], np.float32)}
        return value if len(calls) == 1 else deed(value)

    return check


@pytest.mark.parametrize(
    ("deed", "error"),
    [
        (lambda found: {"value": found["value"] + np.float32([1, 0])}, 0.25),
        (lambda found: {"value": found["value"].astype(np.float64)}, np.inf),
        (lambda found: {"value": found["value"][:1]}, np.inf),
        (lambda found: {"value": found["value"] * np.float32(np.nan)}, np.inf),
    ],
    ids=["value", "dtype", "shape", "nan"],
)
def test_difference_is_found(deed, error):
    assert gpu_check.compare(altered(deed), "@numpy") == {"ok": False, "error": error}


def test_small_difference_passes():
    slightly = lambda found: {"value": found["value"] * np.float32(1.001)}
    found = gpu_check.compare(altered(slightly), "@numpy")
    assert found["ok"] and found["error"] == pytest.approx(1e-3, rel=0.01)


def test_exception_is_found():
    found = gpu_check.compare(altered(lambda found: 1 / 0), "@numpy")
    assert not found["ok"]
    assert "ZeroDivisionError" in found["error"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", gpu_check.CHECKS)
def test_gpu_is_as_the_cpu(name):
    if name == "MLP, mixed_bf16":
        pytest.importorskip("ml_dtypes")
    found = gpu_check.compare(gpu_check.CHECKS[name], "@cupy:0")
    assert found["ok"], found["error"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", gpu_check.MODELS)
def test_captured_steps_are_as_others(name):
    found = gpu_check.compare_captured(name, "@cupy:0")
    assert found["ok"], found["error"]


@pytest.mark.gpu
def test_step_that_is_not_captured_is_found(monkeypatch):
    model = gpu_check.MODELS["MLP"]

    def waiting():
        made = model()
        made.append(lambda y: y * float(y.array.sum() * 0 + 1))
        return made

    monkeypatch.setitem(gpu_check.MODELS, "MLP", waiting)
    with pytest.warns(UserWarning, match="reads the values"):
        found = gpu_check.compare_captured("MLP", "@cupy:0")
    assert not found["ok"] and found["error"].startswith("the step is not captured: ")


@pytest.mark.gpu
@attr.multi_gpu(2)
@pytest.mark.parametrize("name", gpu_check.ON_SECOND)
def test_trainings_run_on_the_second_gpu(name):
    found = gpu_check.compare(gpu_check.CHECKS[name], "@cupy:1")
    assert found["ok"], found["error"]


@pytest.mark.gpu
def test_double_is_known(request):
    assert gpu_check.is_double() == (request.config.option.gpu == "double")


@pytest.mark.gpu
def test_planted_fault_is_found(monkeypatch):
    """The GPU's value of a function is wrong by one percent."""
    right = mpchain.functions.tanh

    def tanh(x):
        y = right(x)
        return y * 1.01 if y.xp is not np else y

    monkeypatch.setattr(mpchain.functions, "tanh", tanh)
    found = gpu_check.compare(gpu_check.CHECKS["elementwise"], "@cupy:0")
    assert not found["ok"] and found["error"] > gpu_check.TOLERANCE
