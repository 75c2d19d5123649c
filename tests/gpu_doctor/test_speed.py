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


@pytest.mark.parametrize("is_last", [False, True])
def test_pytorch_is_measured_at_its_best(is_last, monkeypatch):
    """The optimizer is fused; on request, all convolutions have the channels last."""
    torch = pytest.importorskip("torch")
    options, layouts = {}, []
    optimizer, convolve = torch.optim.SGD, torch.nn.Conv2d._conv_forward

    def make(params, *args, **kwargs):
        options.update(kwargs)
        return optimizer(params, *args, **kwargs)

    def observe(self, x, weight, bias):
        kind = torch.channels_last
        layouts.append([v.is_contiguous(memory_format=kind) for v in (x, weight)])
        return convolve(self, x, weight, bias)

    monkeypatch.setattr(torch.optim, "SGD", make)
    monkeypatch.setattr(torch.nn.Conv2d, "_conv_forward", observe)
    speed.torch_step("ResNet-50", "single", speed.SMALL["ResNet-50"], "cpu", is_last)()
    assert options["fused"] is True
    assert layouts[0] == [is_last, is_last]
    assert not is_last or all(map(all, layouts))


@pytest.mark.parametrize("name", speed.SMALL)
def test_both_train_models_of_one_size(name):
    torch = pytest.importorskip("torch")
    size = speed.SMALL[name]
    theirs = speed._torch_network(torch, name, size)
    ours = speed._network(name, size)
    assert ours.count_params() == sum(p.numel() for p in theirs.parameters())


def test_both_have_the_same_models():
    assert speed.SIZES.keys() == speed.SMALL.keys()
