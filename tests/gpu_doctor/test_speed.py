import pytest

from mpchain.gpu_doctor import speed

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("device", ["@numpy", pytest.param("@cupy:0", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("precision", speed.PRECISIONS)
@pytest.mark.parametrize("name", speed.SMALL)
def test_steps_of_mpchain_train(name, precision, device):
    step = speed.OwnStep(name, precision, speed.SMALL[name], device)
    first = step.loss()
    for _ in range(4):
        step()
    assert step.loss() < first


@pytest.mark.gpu
@pytest.mark.parametrize("name", speed.SMALL)
def test_rows_of_a_captured_step(name, request):
    if request.config.option.gpu != "double":
        pytest.skip("needs the double of CuPy: --gpu=double")
    (_, measure), (_, count) = speed.own_steps(name, "single", "captured")
    row = measure()
    assert "error" not in row and row["milliseconds"] > 0 and row["bytes"] > 0
    assert "graph" in [kernel for kernel, _, _ in count()["rows"]]


@pytest.mark.parametrize("mode", ["eager", "channels last"])
@pytest.mark.parametrize("precision", speed.PRECISIONS)
def test_steps_of_pytorch_train(precision, mode):
    pytest.importorskip("torch")
    for name in speed.SMALL if mode == "eager" else ["ResNet-50"]:
        size = speed.SMALL[name]
        step = speed.torch_step(name, precision, size, "cpu", mode == "channels last")
        first = step()
        for _ in range(3):
            last = step()
        assert last < first


@pytest.mark.parametrize("name", speed.SMALL)
def test_both_train_models_of_one_size(name):
    torch = pytest.importorskip("torch")
    size = speed.SMALL[name]
    theirs = speed._torch_network(torch, name, size)
    ours = speed._network(name, size)
    assert ours.count_params() == sum(p.numel() for p in theirs.parameters())


def test_both_have_the_same_models():
    assert speed.SIZES.keys() == speed.SMALL.keys()
