"""Tests private state and names that old programs use; for lack of each, at least one
program failed."""

import importlib

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import datasets, iterators, optimizers, testing
from mpchain.training import extensions

pytestmark = pytest.mark.slow

OPTIMIZER = optimizers.SGD().setup(L.Linear(1, 1))
SHIFT = "_last_value _update_value _get_optimizer"
STATE = [
    (lambda: extensions.LogReport(), "_keys _trigger _summary _init_summary"),
    (lambda: extensions.PlotReport(["a"]), "_data _trigger _summary _init_summary"),
    (lambda: extensions.PrintReport(["a"]), "_log_report _header _templates _print _log_len"),
    (lambda: extensions.ExponentialShift("lr", 0.5), SHIFT),
    (lambda: extensions.InverseShift("lr", 1, 1), SHIFT),
    (lambda: extensions.LinearShift("lr", (1, 2), (1, 2)), SHIFT),
    (lambda: extensions.PolynomialShift("lr", 1, 1), SHIFT),
    (lambda: extensions.StepShift("lr", 0.1, 1), SHIFT),
    (lambda: extensions.snapshot_object(OPTIMIZER, "a"), "_target"),
    (lambda: iterators.SerialIterator([1], 1), "_state _shuffle _epoch_size"),
    (lambda: iterators.MultithreadIterator([1], 1), "_shuffle"),
    (lambda: datasets.LabeledImageDataset([("a", 1)]), "_label_dtype"),
    (lambda: datasets.SubDataset([1, 2], 0, 1), "_start _finish"),
    (lambda: datasets.TupleDataset([1]), "_length"),
    (lambda: OPTIMIZER, "_pre_update_hooks _post_update_hooks"),
    (lambda: OPTIMIZER.target.W.update_rule, "_state"),
    (testing.get_trainer_with_mock_updater, "_done _start_at _snapshot_elapsed_time"),
    (mpchain.Reporter, "_observer_names"),
    (mpchain.Summary, "_x2"),
    (lambda: L.BatchNormalization(1), "_initial_avg_mean _highprec_dtype"),
    (lambda: L.Linear(1, 1), "_local_link_hooks _n_local_link_hooks"),
    (lambda: F.relu(mpchain.Variable(np.ones(2, "f"))).node,
     "_creator_node _data _rank _old_style_grad_generator"),
    (mpchain.FunctionNode,
     "_input_indexes_to_retain _output_indexes_to_retain _retained_output_data"),
]  # fmt: skip
NAMES = {
    "links.model.vision.resnet": "_global_average_pooling_2d _retrieve _transfer_components "
    "_transfer_bottleneckA _transfer_bottleneckB _transfer_block _transfer_resnet50",
    "functions.math.matmul": "_matmul _get_check_index",
    "training.updaters.multiprocess_parallel_updater": "_get_nccl_data_type",
    "training.updater": "MultiprocessParallelUpdater",
    "_version": "__version__",
    "types": "NdArray",
}
OF_CAFFE = "_layer _get_num caffe_pb _type_to_method _oldname_to_method _CallChildLink "
OF_CAFFE += "_SingleArgumentFunction _ListArgumentFcuntion _EltwiseFunction "
OF_CAFFE += "_get_ksize _get_stride _get_pad"


@pytest.mark.parametrize(("make", "names"), STATE, ids=[names for _, names in STATE])
def test_state(make, names):
    made = make()
    assert [name for name in names.split() if not hasattr(made, name)] == []


@pytest.mark.parametrize("module", NAMES)
def test_names(module):
    found = importlib.import_module(f"chainer.{module}")
    assert [name for name in NAMES[module].split() if not hasattr(found, name)] == []


@pytest.mark.annex("interop")
def test_names_of_the_reader_of_caffe():
    found = importlib.import_module("chainer.links.caffe.caffe_function")
    assert [name for name in OF_CAFFE.split() if not hasattr(found, name)] == []
