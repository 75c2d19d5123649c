"""Maps names of Chainer to mpchain's objects where modules or names differ."""

import math
from typing import Any

_ROOT_PI = math.sqrt(math.pi)
_HALF_LOG = 0.5 * math.log(2 * math.pi)
_HOOKS = (
    "GradientClipping",
    "GradientHardClipping",
    "GradientNoise",
    "Lasso",
    "WeightDecay",
)
_DENSITY = {"LOGPROBC": -_HALF_LOG, "ENTROPYC": 0.5 + _HALF_LOG, "PROBC": math.exp(-_HALF_LOG)}
_CHECKS = {
    name: f"compat.stand_ins:{name}" for name in ("check_available", "get_error", "is_available")
}
_PREPARED = {
    name: f"functions:{name}"
    for name in (
        "average_pooling_2d dropout local_response_normalization max_pooling_2d relu reshape "
        "softmax sum"
    ).split()
} | {"Variable": "variable:Variable", "concat_examples": "dataset.convert:concat_examples"}


def _all(room, *names):
    return {name: f"{room}:{name}" for name in names}


def _own(*names):
    return _all("compat.stand_ins", *names)


def _of_users(*names):
    return _all("compat.user_communicators", *names)


_FOLDS = _own("get_cross_validation_datasets", "get_cross_validation_datasets_random")

SPECIAL: dict[str, dict[str, Any]] = {
    "chainer": _own("static_graph", "static_code", "_get_link_hooks", "FunctionSet")
    | {"as_variable": "variable:as_variable"},
    "chainer.functions": _own("batch_matmul", "det"),
    "chainer.functions.math.det": _own("det"),
    "chainer._backend": {"Device": "backend:Device"} | _own("_DummyContext", "_dummy_context"),
    "chainer._environment_check": _own("check"),
    "chainer.backends._chainerx": _all("backend", "ChainerxDevice", "from_chx", "to_chx"),
    "chainer.backends._cpu": _all("backend", "CpuDevice"),
    "chainer.backends.intel64": {"Intel64Device": "backend:Intel64Device"}
    | _own("check_ideep_available", "inputs_all_ready", "is_ideep_available", "should_use_ideep")
    | {"mdarray": "compat.stand_ins:mdarray"},
    "chainer.backends.cuda": _own("DummyDevice", "DummyDeviceType", "get_device"),
    "chainer.cuda": _own("DummyDevice", "DummyDeviceType", "get_device"),
    "chainer.dataset.convert": _own(
        "_concat_arrays", "_concat_arrays_with_padding", "_call_converter"
    )
    | {"concat_examples_func": "dataset.convert:concat_examples"},
    "chainer.datasets": _FOLDS,
    "chainer.datasets.sub_dataset": _FOLDS,
    "chainer.datasets.image_dataset": _own("_read_image_as_array") | {"available": True},
    "chainer.distributions.gumbel": {"EULER": 0.5772156649015329},
    "chainer.distributions.log_normal": _DENSITY,
    "chainer.distributions.multivariate_normal": _DENSITY | {"available_cpu": True},
    "chainer.distributions.normal": _DENSITY,
    "chainer.function": _all("configuration", "no_backprop_mode", "force_backprop_mode"),
    "chainer.functions.activation.log_softmax": _own("_log_softmax"),
    "chainer.functions.array.im2col": {
        "im2col_cpu": "utils.conv:im2col",
        "im2col_gpu": "utils.conv:im2col",
        "col2im_cpu": "utils.conv:col2im",
        "col2im_gpu": "utils.conv:col2im",
    },
    "chainer.functions.array.get_item": _own("install_variable_get_item"),
    "chainer.functions.evaluation.classification_summary": _own("fbeta_score"),
    "chainer.functions.math.basic_math": _own(
        "install_variable_arithmetics",
        *("div floordiv mul neg pow rdiv rfloordiv rmatmul rpow rsub sub").split(),
    ),
    "chainer.functions.math.erfcinv": {"BACKWORDC": _ROOT_PI / 2, "available_cpu": True},
    "chainer.functions.math.erfcx": {"available_cpu": True},
    "chainer.functions.math.erfinv": {"BACKWORDC": _ROOT_PI / 2, "available_cpu": True},
    "chainer.functions.math.matmul": _own(
        "_check_ndim", "_get_check_index", "_matmul", "batch_matmul"
    ),
    "chainer.functions.math.ndtri": {"available_cpu": True},
    "chainer.functions.rnn.n_step_gru": _own("_gru", "n_step_gru_base"),
    "chainer.functions.rnn.n_step_lstm": _own("_lstm", "n_step_lstm_base"),
    "chainer.functions.rnn.n_step_rnn": _own("n_step_rnn_base"),
    "chainer.graph_optimizations": _own("static_graph", "static_code"),
    "chainer.graph_optimizations.static_graph": _own("static_graph"),
    "chainer.initializers": {"_get_initializer": "initializers:get_initializer"},
    "chainer.iterators._statemachine": _all("compat.private_state", "IteratorState"),
    "chainer.link_hook": _own("_ForwardPreprocessCallbackArgs", "_ForwardPostprocessCallbackArgs"),
    "chainer.link_hooks.spectral_normalization": _own(
        "calculate_max_singular_value", "l2normalize", "update_approximate_vectors"
    ),
    "chainer.links.caffe": _all("links.caffe", "CaffeFunction"),
    "chainer.links.caffe.caffe_function": _all("links.caffe", "CaffeFunction")
    | _all(
        "compat.caffe",
        *"_CallChildLink _EltwiseFunction _ListArgumentFcuntion _SingleArgumentFunction".split(),
        *"_get_channels _get_height _get_ksize _get_num _get_pad _get_stride _get_width".split(),
        *"_layer _oldname_to_method _type_to_method caffe_pb".split(),
    ),
    "chainer.links.caffe.protobuf3.caffe_pb2": {"TRAIN": 0, "TEST": 1},
    "chainer.links.model.vision.googlenet": _all("links.model.vision.googlenet", "prepare"),
    "chainer.links.model.vision.resnet": _all(
        "links.model.vision.resnet", "BottleneckA", "BottleneckB", "BuildingBlock", "prepare"
    )
    | _own("_global_average_pooling_2d")
    | _all(
        "compat.vision",
        *"_retrieve _transfer_block _transfer_bottleneckA _transfer_bottleneckB".split(),
        *"_transfer_components _transfer_resnet101 _transfer_resnet152 _transfer_resnet50".split(),
    ),
    "chainer.links.model.vision.vgg": _all("links.model.vision.vgg", "prepare"),
    "chainer.links.rnn.gru": {"GRUBase": "links.recurrent:_GRUCell"},
    "chainer.links.rnn.lstm": {"LSTMBase": "links.recurrent:_PlainLSTMCell"},
    "chainer.links.rnn.mgu": {"MGUBase": "links.recurrent:_MGUCell"},
    "chainer.links.rnn.n_step_gru": {"NStepGRUBase": "links.n_step:_NStepRNN"},
    "chainer.links.rnn.n_step_lstm": {"NStepLSTMBase": "links.n_step:_NStepRNN"},
    "chainer.links.rnn.n_step_rnn": {"NStepRNNBase": "links.n_step:_NStepRNN"},
    "chainer.memory_layouts": {
        "CUDNN_CHANNEL_FIRST_W": None,
        "CUDNN_CHANNEL_FIRST_X": None,
        "CUDNN_CHANNEL_LAST_W": "CUDNN_CHANNEL_LAST_W",
        "CUDNN_CHANNEL_LAST_X": "CUDNN_CHANNEL_LAST_X",
    }
    | _own("get_raw_shape", "get_semantic_shape"),
    "chainer.optimizer": _own(*_HOOKS),
    "chainer.testing.attr": _CHECKS,
    "chainer.testing.training": _CHECKS,
    "chainer.testing.unary_math_function_test": _CHECKS,
    "chainer.testing.distribution_test": _CHECKS,
    "chainer.testing.random": _own("do_setup", "do_teardown"),
    "chainer.testing.condition": _own("QuietTestRunner"),
    "chainer.testing.doctest_helper": _own(
        "skipif", "skipif_not_enough_cuda_devices", "skipif_requires_satisfied"
    ),
    "chainer.training.extensions.computational_graph": _own(
        "is_graphviz_available", "is_return_code_zero"
    ),
    "chainer.training.trigger": _all("training", "IntervalTrigger", "get_trigger"),
    "chainer.training.updaters.multiprocess_parallel_updater": _own("_get_nccl_data_type"),
    "chainer.training.updater": _all("training", "ParallelUpdater", "StandardUpdater", "Updater")
    | {"MultiprocessParallelUpdater": "training.updaters:MultiprocessParallelUpdater"},
    "chainer.types": {"TYPE_CHECKING": False, "AbstractInitializer": "initializers:Initializer"}
    | {"NdArray": "typing:Array"},
    "chainer.utils": _own("_check_arrays_forward_compatible"),
    "chainer.utils.array": _own("as_mat", "as_vec", "empty_like"),
    "chainer.utils.cache": _own("cached_property"),
    "chainer.utils.conv_nd": {
        "im2col_nd_cpu": "utils.conv_nd:im2col_nd",
        "im2col_nd_gpu": "utils.conv_nd:im2col_nd",
        "col2im_nd_cpu": "utils.conv_nd:col2im_nd",
        "col2im_nd_gpu": "utils.conv_nd:col2im_nd",
    },
    "chainer.utils.type_check": _own("_argname", "in_light_mode", "get_function_check_context"),
    "chainer.variable": _own("variable_repr", "variable_str"),
    "chainermn.communicators": {
        "NaiveCommunicator": "distributed.communicators:MpiCommunicator",
    }
    | _of_users("CommunicatorBase"),
    "chainermn.communicators._communication_utility": {"INT_MAX": 2**31 - 1},
    "chainermn.communicators.flat_communicator": {
        "FlatCommunicator": "distributed.communicators:MpiCommunicator"
    },
    "chainermn.communicators.mpi_communicator_base": {
        "MpiCommunicatorBase": "distributed.communicators:MpiCommunicator"
    },
    "chainermn.communicators.naive_communicator": {
        "NaiveCommunicator": "distributed.communicators:MpiCommunicator"
    },
    "chainermn.communicators.non_cuda_aware_communicator": {
        "NonCudaAwareCommunicator": "distributed.communicators:MpiCommunicator"
    },
    "chainermn.communicators.pure_nccl_communicator": {
        "PureNcclCommunicator": "distributed.communicators:NcclCommunicator"
    },
    "chainermn": _of_users("create_multi_node_evaluator", "create_multi_node_optimizer"),
    "chainermn.communicators.communicator_base": _of_users("CommunicatorBase"),
    "chainermn.extensions": _of_users("create_multi_node_evaluator"),
    "chainermn.extensions.multi_node_evaluator": _of_users("create_multi_node_evaluator"),
    "chainermn.optimizers": {"_MultiNodeOptimizer": "distributed.optimizers:MultiNodeOptimizer"}
    | _of_users("create_multi_node_optimizer"),
    "chainermn.functions": _own("pseudo_connect"),
    "chainermn.functions.pseudo_connect": _own("pseudo_connect"),
    "chainer.training.extensions.util": _own("erase_console", "set_console_cursor_position"),
    "chainermn.extensions._multi_node_snapshot": _all("serializers", "load_npz", "save_npz")
    | {
        "Extension": "training:Extension",
        "_MultiNodeSnapshot": "distributed.extensions.multi_node_snapshot:_MultiNodeSnapshot",
    }
    | _own("_find_latest_snapshot", "_parse_replica_sets"),
    "chainermn.extensions.multi_node_early_stopping_trigger": {
        "EarlyStoppingTrigger": "training.triggers:EarlyStoppingTrigger"
    },
    "chainerx": _own("ndarray") | {"is_available": "compat.stand_ins:no_chainerx"},
}
ROOMS = {
    "chainer.cuda": "mpchain.backends.cuda",
    "chainer.training.extensions.util": "mpchain.training.extensions.progress_bar",
}
"""Maps modules of Chainer to modules of mpchain with another name."""

for _model in ("googlenet", "resnet", "vgg"):
    SPECIAL[f"chainer.links.model.vision.{_model}"] |= _PREPARED | {"available": True}
"""``SPECIAL`` maps a module of Chainer to a dict from its names to ``module:name`` in mpchain or to
a value."""

IMPORTED = {
    "numpy": "numpy",
    "np": "numpy",
    "collections_abc": "collections.abc",
    "tp": "typing",
} | {
    name: name
    for name in (
        "collections contextlib copy functools inspect itertools math numbers operator os shutil "
        "six sys tempfile threading time unittest warnings weakref"
    ).split()
}
"""Maps names of modules that Chainer's modules import to the modules' full names."""

ANYWHERE: dict[str, Any] = _own(
    "static_code", "static_forward_optimizations", "argsort_list_descent", "permutate_list", "_pair"
)
"""Names that several modules of Chainer have; they are looked up last."""


def absent(module: str, name: str) -> Any:
    """Returns a stand-in for Chainer's internals, which can be imported but not used."""
    message = (
        f"{module}.{name} is part of how Chainer was implemented; mpchain is implemented otherwise "
        "and has nothing in its place"
    )

    def refuse(*args, **kwargs):
        raise NotImplementedError(message)

    if not name[0].isupper():
        refuse.__name__, refuse.__doc__ = name, message
        vars(refuse)["is_absent"] = True
        return refuse
    body = {"__doc__": message, "__module__": module, "__new__": refuse, "is_absent": True}
    return type(name, (), body)
