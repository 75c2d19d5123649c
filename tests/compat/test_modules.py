"""Tests the modules of Chainer that compat makes."""

import importlib
import os
import subprocess
import sys
import unittest.mock

import numpy as np
import pytest

import mpchain
from mpchain import compat, links
from mpchain.compat.layout import layout

pytestmark = pytest.mark.slow

IN_MPCHAIN = [
    ("chainer.Variable", mpchain.Variable),
    ("chainer.variable.Parameter", mpchain.Parameter),
    ("chainer.links.connection.linear.Linear", links.Linear),
    ("chainer.links.model.vision.resnet.ResNet50Layers", links.ResNet50Layers),
    ("chainer.optimizers.momentum_sgd.MomentumSGD", mpchain.optimizers.MomentumSGD),
    ("chainer.training.updater.StandardUpdater", mpchain.training.StandardUpdater),
    ("chainer.training.trigger.IntervalTrigger", mpchain.training.IntervalTrigger),
    ("chainer.datasets.tuple_dataset.TupleDataset", mpchain.datasets.TupleDataset),
    ("chainer.dataset.download.get_dataset_root", mpchain.dataset.get_dataset_root),
    ("chainer.dataset.tabular.from_data", mpchain.dataset.tabular.from_data),
    ("chainer.function.no_backprop_mode", mpchain.no_backprop_mode),
    ("chainer.initializers._get_initializer", mpchain.initializers.get_initializer),
    ("chainer.cuda.to_cpu", mpchain.backends.cuda.to_cpu),
    ("chainer.iterators.serial_iterator.SerialIterator", mpchain.iterators.SerialIterator),
    ("chainermn.create_communicator", mpchain.create_communicator),
    ("chainermn.datasets.scatter.scatter_dataset", mpchain.scatter_dataset),
    ("chainermn.links.MultiNodeBatchNormalization",
     mpchain.distributed.links.MultiNodeBatchNormalization),
]  # fmt: skip


def look_up(path):
    """Imports the object that a dotted path names."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_a_module_has_every_public_name():
    missing = [
        f"{module}.{name}"
        for module, (_, names) in layout().items()
        for name in names
        if not hasattr(importlib.import_module(module), name)
    ]
    assert layout() and missing == []


@pytest.mark.parametrize(("path", "expected"), IN_MPCHAIN, ids=[path for path, _ in IN_MPCHAIN])
def test_a_name_is_that_of_mpchain(path, expected):
    assert look_up(path) is expected


def test_modules_of_functions_do_not_hide_functions():
    import chainer

    loss = chainer.functions.loss
    assert (
        loss.softmax_cross_entropy.softmax_cross_entropy is chainer.functions.softmax_cross_entropy
    )
    assert callable(chainer.functions.softmax_cross_entropy)


def test_all_names_of_a_module_can_be_imported():
    scope = {}
    exec_import = "from chainer.functions.activation.leaky_relu import *"
    exec(exec_import, scope)
    assert {"LeakyReLU", "leaky_relu"} <= scope.keys()


def test_versions():
    import chainer
    import chainermn
    import chainerx

    assert chainer.__version__ == "7.8.1"
    assert all(os.path.isfile(package.__file__) for package in (chainer, chainermn, chainerx))
    assert not chainerx.is_available()
    assert chainer.chainerx is chainerx


def test_what_is_replaced_for_a_while_is_replaced_in_mpchain():
    import chainer

    before = mpchain.backends.cuda.to_cpu
    with unittest.mock.patch("chainer.backends.cuda.to_cpu") as to_cpu:
        assert mpchain.backends.cuda.to_cpu is to_cpu
    assert mpchain.backends.cuda.to_cpu is before
    assert chainer.backends.cuda.to_cpu is before


def test_a_part_of_the_implementation_is_refused_when_it_is_used():
    from chainer.functions.activation.relu import ReLUGrad2
    from chainer.training.extensions.variable_statistics_plot import Reservoir

    for made in (ReLUGrad2, Reservoir):
        with pytest.raises(NotImplementedError, match=f"{made.__name__} is part of how Chainer"):
            made()


def test_a_name_that_chainer_did_not_have():
    import chainer

    with pytest.raises(AttributeError, match=r"'chainer\.links' has no attribute 'Nonsense'"):
        _ = chainer.links.Nonsense
    with pytest.raises(ModuleNotFoundError, match=r"chainer\.nonsense"):
        importlib.import_module("chainer.nonsense")


def test_without_it_there_is_no_chainer():
    compat.uninstall()
    for name in ("chainer", "chainermn", "chainerx"):
        assert importlib.util.find_spec(name) is None


def test_everything_is_as_before_when_it_is_taken_back():
    compat.uninstall()
    relu, shown = mpchain.functions.relu, mpchain.FunctionNode.shown
    compat.install()
    assert mpchain.functions.relu is not relu
    compat.uninstall()
    assert mpchain.functions.relu is relu and mpchain.FunctionNode.shown is shown
    assert not hasattr(mpchain.Link, "_device_id") and not hasattr(np, "asscalar")


def test_a_program_is_run_by_the_command(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, chainer.functions as F\nprint(F.relu.__name__, __name__, sys.argv[1:])\n"
    )
    command = [sys.executable, "-m", "mpchain.compat", str(program), "--epoch", "2"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout == "relu __main__ ['--epoch', '2']\n"


def test_a_module_is_run_by_the_command(tmp_path):
    (tmp_path / "package.py").write_text("import chainer\nprint(chainer.__version__)\n")
    command = [sys.executable, "-m", "mpchain.compat", "-m", "package"]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=True, cwd=tmp_path
    )
    assert run.stdout == "7.8.1\n"


def test_private_names_that_programs_import():
    import chainer._version
    import chainer.types
    from chainer.links.model.vision.resnet import _global_average_pooling_2d
    from chainer.training.updater import MultiprocessParallelUpdater
    from chainermn.optimizers import _MultiNodeOptimizer

    from mpchain import distributed, training

    assert chainer._version.__version__ == "7.8.1"
    assert chainer.types.NdArray is not None
    x = np.arange(16, dtype="f").reshape(1, 2, 2, 4)
    np.testing.assert_array_equal(_global_average_pooling_2d(x).array, [[3.5, 11.5]])
    assert MultiprocessParallelUpdater is training.updaters.MultiprocessParallelUpdater
    assert _MultiNodeOptimizer is distributed.optimizers.MultiNodeOptimizer


def test_console_of_windows(capsys):
    from chainer.training.extensions import util

    util.set_console_cursor_position(0, -3)
    util.set_console_cursor_position(2, 1)
    util.erase_console(0, 0)
    util.erase_console(-1, 0, 2)
    assert capsys.readouterr().out == "\033[3A" + "\033[2C\033[1B" + "\033[0J" + "\033[1D\033[2J"
