"""Tests that examples compute the same on a GPU as on the host."""

import pytest

from tests.examples import programs

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.mark.parametrize("model", ["mlp", "conv"])
def test_digits(tmp_path, model):
    logs = []
    for device in ("@numpy", "@cupy:0"):
        out = tmp_path / device
        options = ("--double", "--epoch", 1, "--model", model, "--batchsize", 100, "--out", out)
        printed = programs.run("mnist/train_mnist.py", "--device", device, *options)
        assert device in printed
        logs.append(programs.log_of(out))
    programs.check_alike(logs[1], logs[0], 1e-9)


def test_wgan_gp(tmp_path):
    logs = []
    for options in ([], ["--gpu"]):
        out = tmp_path / str(len(options))
        programs.run("wgan_gp/train_wgan_gp.py", "--test", "--out", out, *options)
        logs.append(programs.log_of(out))
    programs.check_alike(logs[1], logs[0])
