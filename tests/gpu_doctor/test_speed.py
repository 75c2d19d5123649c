import pytest

from mpchain.gpu_doctor import speed as gpu_speed

pytestmark = pytest.mark.slow


def names_of(rows):
    for row in rows:
        assert "error" not in row, row["error"]
        assert row["milliseconds"]["step"] >= 0 and row["milliseconds"]["host"] >= 0
        yield row["name"]


NAMES = [f"{name}, {how}" for name in gpu_speed.SMALL for how in ("single", "mixed")]


@pytest.mark.parametrize("device", ["@numpy", pytest.param("@cupy:0", marks=pytest.mark.gpu)])
def test_steps_of_mpchain_are_timed(device):
    assert [*names_of(gpu_speed.run(gpu_speed.mpchain_step, device, gpu_speed.SMALL, 1))] == NAMES


def test_steps_of_pytorch_are_timed():
    pytest.importorskip("torch")
    assert [*names_of(gpu_speed.run(gpu_speed.torch_step, "cpu", gpu_speed.SMALL, 1))] == NAMES


@pytest.mark.parametrize("name", gpu_speed.SMALL)
def test_both_train_models_of_one_size(name):
    torch = pytest.importorskip("torch")
    size = gpu_speed.SMALL[name]
    theirs = gpu_speed._torch_network(torch, name, size)
    ours = gpu_speed._network(name, size)
    assert ours.count_params() == sum(p.numel() for p in theirs.parameters())


def test_both_have_the_same_models():
    assert gpu_speed.SIZES.keys() == gpu_speed.SMALL.keys()


def test_exception_is_a_row():
    (row, _) = gpu_speed.run(gpu_speed.mpchain_step, "@no", {"MLP": gpu_speed.SMALL["MLP"]}, 1)
    assert row["name"] == "MLP, single" and row["error"].startswith("Traceback")
