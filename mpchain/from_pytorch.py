"""PyTorch names that mpchain lacks: using such a name raises an error that says what to use
instead.

Only accesses that fail take more time. Classes get descriptors that raise the error, because a
method ``__getattr__`` would slow every access; modules get a function ``__getattr__``.
"""

import inspect
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

_Class = TypeVar("_Class", bound=type)

_EVALUATION = "'with mpchain.using_config(\"train\", False):'"
_ARRAY = "x.array, which is a NumPy or CuPy array"
_DEVICE = 'to_device("@cupy:0"), or to_device("@numpy")'
_DATA = "mpchain.iterators.SerialIterator or MultiprocessIterator over a list, array or dataset"

NAMES = {
    "mpchain": {
        "no_grad": "mpchain.no_backprop_mode()",
        "inference_mode": "mpchain.no_backprop_mode()",
        "enable_grad": "mpchain.force_backprop_mode()",
        "tensor": "mpchain.Variable(array) if it needs a gradient, else the NumPy array itself",
        "from_numpy": "mpchain.Variable(array) if it needs a gradient, else the NumPy array itself",
        "Tensor": "mpchain.Variable",
        "Module": "mpchain.Chain",
        "nn": "mpchain.links as L, with mpchain.functions as F and mpchain.Chain",
        "optim": "mpchain.optimizers",
        "autograd": "mpchain.grad and mpchain.differentiable",
        "save": "mpchain.serializers.save_npz(file, model)",
        "load": "mpchain.serializers.load_npz(file, model)",
        "manual_seed": "numpy.random.seed(0)",
        "seed": "numpy.random.seed(0)",
        "seed_everything": "numpy.random.seed(0)",
        "autocast": "mpchain.global_config.dtype = mpchain.mixed16, before the model is made",
        "vmap": (
            "a function of the whole batch (N, ...), because functions and links take batches"
        ),
        "device": 'mpchain.get_device("@cupy:0")',
        "DataLoader": _DATA,
        "cat": "mpchain.functions.concat(xs, axis=1)",
    },
    "mpchain.utils": {"data": _DATA},
    "mpchain.backends.cuda": {"is_available": "mpchain.cuda.available"},
    "mpchain.functions": {
        "cross_entropy": "F.softmax_cross_entropy(y, t)",
        "nll_loss": "F.softmax_cross_entropy(y, t) on what comes before log_softmax",
        "mse_loss": "F.mean_squared_error(y, t)",
        "l1_loss": "F.mean_absolute_error(y, t)",
        "binary_cross_entropy": "F.sigmoid_cross_entropy(y, t) on what comes before sigmoid",
        "binary_cross_entropy_with_logits": "F.sigmoid_cross_entropy(y, t)",
        "cat": "F.concat(xs, axis=1)",
        "conv1d": "F.convolution_1d",
        "conv2d": "F.convolution_2d",
        "conv3d": "F.convolution_3d",
        "conv_transpose2d": "F.deconvolution_2d",
        "max_pool2d": "F.max_pooling_2d",
        "avg_pool2d": "F.average_pooling_2d",
        "batch_norm": "F.batch_normalization",
        "layer_norm": "F.layer_normalization",
        "view": "F.reshape",
        "permute": "F.transpose",
        "unsqueeze": "F.expand_dims",
        "clamp": "F.clip",
    },
    "mpchain.links": {
        "Module": "mpchain.Chain",
        "Sequential": "mpchain.Sequential",
        "ModuleList": "mpchain.ChainList",
        "Conv1d": "L.Convolution1D",
        "Conv2d": "L.Convolution2D",
        "Conv3d": "L.Convolution3D",
        "ConvTranspose2d": "L.Deconvolution2D",
        "LazyLinear": "L.Linear(None, out_size)",
        "BatchNorm1d": "L.BatchNormalization",
        "BatchNorm2d": "L.BatchNormalization",
        "LayerNorm": "L.LayerNormalization",
        "GroupNorm": "L.GroupNormalization",
        "Embedding": "L.EmbedID",
        "MultiheadAttention": "L.MultiHeadAttention",
        "ReLU": "F.relu; a Sequential takes functions, too",
        "GELU": "F.gelu; a Sequential takes functions, too",
        "Tanh": "F.tanh; a Sequential takes functions, too",
        "Sigmoid": "F.sigmoid; a Sequential takes functions, too",
        "Softmax": "F.softmax; a Sequential takes functions, too",
        "MaxPool2d": "F.max_pooling_2d, such as lambda x: F.max_pooling_2d(x, 2)",
        "Flatten": "no layer before L.Linear, which flattens its input; elsewhere F.reshape",
        "CrossEntropyLoss": "F.softmax_cross_entropy(y, t)",
        "MSELoss": "F.mean_squared_error(y, t)",
    },
    "mpchain.optimizers": {
        "Adagrad": "optimizers.AdaGrad",
        "Adadelta": "optimizers.AdaDelta",
        "lr_scheduler": "mpchain.training.extensions: CosineShift, ExponentialShift, LinearShift",
    },
    "Variable": {
        "detach": _ARRAY,
        "numpy": "x.array, or mpchain.cuda.to_cpu(x.array)",
        "cpu": "x.to_cpu(), or mpchain.cuda.to_cpu(x.array)",
        "cuda": "x." + _DEVICE,
        "to": "x." + _DEVICE + "; F.cast(x, dtype) for dtypes",
        "float": "float(x) or x.item() for a number, F.cast(x, dtype) for dtypes",
        "view": "x.reshape",
        "permute": "x.transpose",
        "dim": "x.ndim",
        "sum": "F.sum(x)",
        "max": "F.max(x)",
        "argmax": "F.argmax(x, axis=1)",
        "squeeze": "F.squeeze(x)",
        "unsqueeze": "F.expand_dims(x, axis)",
        "flatten": "F.flatten(x)",
        "tolist": "x.array.tolist()",
        "clone": "F.identity(x), or x.array.copy()",
        "requires_grad_": "mpchain.Variable(array), which needs a gradient",
        "retain_grad": "y.backward(retain_grad=True)",
        "is_leaf": "x.creator is None",
    },
    "Link": {
        "parameters": "model.params()",
        "named_parameters": "model.namedparams()",
        "modules": "model.links()",
        "named_modules": "model.namedlinks()",
        "state_dict": "mpchain.serializers.save_npz(file, model)",
        "load_state_dict": "mpchain.serializers.load_npz(file, model)",
        "train": f"mpchain.config.train, which is True except within {_EVALUATION}",
        "eval": f"{_EVALUATION} around the evaluation",
        "to": "model." + _DEVICE,
        "cuda": "model." + _DEVICE,
        "cpu": "model.to_cpu()",
        "half": "mpchain.global_config.dtype = mpchain.mixed16, before the model is made",
        "zero_grad": "model.cleargrads()",
        "register_buffer": "model.add_persistent(name, value)",
        "register_parameter": "self.name = mpchain.Parameter(...) in self.init_scope()",
        "add_module": "model.add_link(name, link)",
        "summary": "print(mpchain.summary(model, x))",
        "requires_grad_": "model.disable_update()",
        "weight": "link.W",
        "bias": "link.b",
    },
    "Optimizer": {
        "step": "optimizer.update()",
        "zero_grad": "model.cleargrads()",
        "state_dict": "mpchain.serializers.save_npz(file, optimizer)",
        "load_state_dict": "mpchain.serializers.load_npz(file, optimizer)",
        "param_groups": "optimizer.lr and the like, or update_rule.hyperparam of each parameter",
    },
}
"""The replacements of PyTorch names that mpchain lacks, by mpchain's module or class."""

ARGUMENTS = {
    "bias": "nobias",
    "in_features": "in_size",
    "out_features": "out_size",
    "kernel_size": "ksize",
    "padding": "pad",
    "dilation": "dilate",
    "num_embeddings": "in_size",
    "embedding_dim": "out_size",
    "padding_idx": "ignore_label",
    "num_features": "size",
    "normalized_shape": "size",
    "hidden_size": "out_size",
    "num_layers": "n_layers",
}
"""mpchain's name, by PyTorch's name, of arguments of layers that have different names."""

OF_FUNCTIONS = {
    "dim": "axis",
    "keepdim": "keepdims",
    "input": "x",
    "kernel_size": "ksize",
    "padding": "pad",
    "dilation": "dilate",
}
"""mpchain's name, by PyTorch's name, of arguments of functions that have different names."""

OF_TRAINERS = {
    "max_epochs": 'stop_trigger=(n, "epoch")',
    "max_steps": 'stop_trigger=(n, "iteration")',
    "callbacks": "trainer.extend(extension)",
    "accumulate_grad_batches": "MultiNodeUpdater(..., accumulation=n), which divides the batch",
}
"""The replacements of arguments of Lightning's Trainer."""

OPTIONS = {
    "lr": "alpha",
    "betas": "beta1 and beta2",
    "momentum": "MomentumSGD(lr, momentum)",
    "nesterov": "NesterovAG(lr, momentum)",
    "weight_decay": "optimizer.add_hook(mpchain.optimizer_hooks.WeightDecay(rate)), or AdamW",
}
"""The replacements of arguments of PyTorch's optimizers."""


def module_getattr(module: str) -> Callable[[str], NoReturn]:
    """Returns the ``__getattr__`` of a module, which raises AttributeError.

    Args:
        module: the module's name.

    Example:
        >>> F.cross_entropy
        Traceback (most recent call last):
        AttributeError: module 'mpchain.functions' has no attribute 'cross_entropy': \
use F.softmax_cross_entropy(y, t)
    """
    names = NAMES[module]

    def __getattr__(name: str) -> NoReturn:
        raise AttributeError(_message(f"module {module!r}", name, names), name=name)

    return __getattr__


def with_names(called: str) -> Callable[[_Class], _Class]:
    """Returns a class decorator that makes accesses of PyTorch names raise errors, which say what
    to use instead.

    Subclasses, other base classes and instances may define these names.

    Args:
        called: the name of the class in :data:`NAMES`.

    Example:
        >>> mpchain.Chain().parameters()
        Traceback (most recent call last):
        AttributeError: 'Chain' object has no attribute 'parameters': use model.params()
        >>> hasattr(mpchain.Chain, "parameters"), "parameters" in dir(mpchain.Chain())
        (False, False)
    """

    def decorate(cls):
        names = NAMES[called]
        for name in names:
            setattr(cls, name, _Absent(cls, name, names))
        cls.__dir__ = lambda self: [
            name for name in super(cls, self).__dir__() if name not in names or hasattr(self, name)
        ]
        return cls

    return decorate


class _Absent:
    """A descriptor that stands for an absent attribute; it is not a data descriptor, so instances
    may set an attribute of that name."""

    def __init__(self, owner, name, names):
        self._owner, self._name, self._names = owner, name, names

    def __get__(self, instance, cls):
        try:  # A base class after the owner may have the attribute.
            return getattr(super(self._owner, cls if instance is None else instance), self._name)
        except AttributeError:
            what = (
                f"type object {cls.__name__!r}" if instance is None else f"{cls.__name__!r} object"
            )
        # Without the object, Python suggests no other name.
        raise AttributeError(_message(what, self._name, self._names), name=self._name)


def _message(what, name, names):
    message = f"{what} has no attribute {name!r}"
    return f"{message}: use {names[name]}" if name in names else message


def check_arguments(
    cls: type, arguments: dict[str, Any], names: dict[str, str] = ARGUMENTS
) -> None:
    """Raises TypeError for PyTorch arguments that have a different name in a class.

    Args:
        cls: the class, such as a layer, whose constructor receives the arguments.
        arguments: the keyword arguments that ``cls`` receives.
        names: for each PyTorch argument, a replacement: text, or an argument that is suggested only
            if ``cls`` has it.

    Example:
        >>> L.Linear(3, 4, bias=False)
        Traceback (most recent call last):
        TypeError: Linear: there is no argument 'bias'; use nobias, the opposite
    """
    wrong = names.keys() & arguments.keys()
    if not wrong:
        return
    parameters = inspect.signature(cls.__init__).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    for name in sorted(wrong - parameters.keys()):
        if (right := names[name]) in parameters or not right.isidentifier():
            opposite = ", the opposite" if name == "bias" else ""
            raise TypeError(f"{cls.__name__}: there is no argument {name!r}; use {right}{opposite}")


def check_options(called: str, function: Callable[..., Any], options: dict[str, Any]) -> None:
    """Raises TypeError if a function receives a PyTorch keyword argument that it does not have.

    Args:
        called: the name of the function in the message.
        function: the function.
        options: the keyword arguments that the function receives.

    Example:
        >>> from mpchain.from_pytorch import check_options
        >>> check_options("softmax", F.softmax, {"dim": 1})
        Traceback (most recent call last):
        TypeError: softmax: there is no argument 'dim'; use axis
    """
    wrong = OF_FUNCTIONS.keys() & options.keys()
    if not wrong:
        return
    parameters = inspect.signature(function).parameters
    for name in sorted(wrong - parameters.keys()):
        if OF_FUNCTIONS[name] in parameters:
            message = f"{called}: there is no argument {name!r}; use {OF_FUNCTIONS[name]}"
            raise TypeError(message) from None
