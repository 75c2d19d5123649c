"""Links: objects that hold parameters, and their compositions."""

import collections.abc
import contextlib
import copy
import math
import textwrap

import numpy as np

from mpchain import initializers
from mpchain.configuration import config
from mpchain.link_hook import call_with_hooks
from mpchain.parameter_tree import ParameterTree, is_array
from mpchain.utils.type_check import explain_arguments
from mpchain.variable import Parameter

_COPY_MODES = ("share", "copy", "init")


class Link(ParameterTree):
    """A function with parameters: assign them in :meth:`init_scope`, compute in ``forward``.

        >>> class Scale(Link):
        ...     def __init__(self, size):
        ...         super().__init__()
        ...         with self.init_scope():
        ...             self.W = Parameter(1, size)
        ...     def forward(self, x):
        ...         return x * self.W

    Besides parameters a link has persistent values: attributes that are saved and moved between
    devices, but not optimized.

    Args:
        params: parameters by name: the shape of each, or a pair of shape and dtype.

    Attributes:
        name (str): the name by which its parent knows it, None without a parent.
    """

    name = None
    _within_init_scope = False
    _hooks = None

    def __init__(self, **params):
        self._params = set()
        self._persistents = set()
        for name, spec in params.items():
            has_dtype = isinstance(spec, tuple) and len(spec) == 2 and not np.isscalar(spec[0])
            self.add_param(name, *(spec if has_dtype else (spec,)))

    # Calls

    def __call__(self, *args, **kwargs):
        """Computes ``forward`` and tells the link hooks."""
        if config.link_hooks or self._hooks:
            hooks = [*config.link_hooks.values(), *self.local_link_hooks.values()]
            return call_with_hooks(self, hooks, args, kwargs)
        try:
            return self.forward(*args, **kwargs)
        except (AttributeError, TypeError) as error:
            explain_arguments(error, type(self).__name__, self.forward, args, kwargs)
            raise

    def forward(self, *args, **kwargs):
        """What the link computes; subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} does not implement forward")

    @property
    def local_link_hooks(self):
        """The hooks that were added to this link, by name."""
        if self._hooks is None:
            self._hooks = {}
        return self._hooks

    def add_hook(self, hook, name=None):
        """Adds a :class:`LinkHook` that is told of the calls of this link; returns the link."""
        name = hook.name if name is None else name
        if name in self.local_link_hooks:
            raise KeyError(f"{type(self).__name__}.add_hook: hook {name!r} exists already")
        self.local_link_hooks[name] = hook
        hook.added(self)
        return self

    def delete_hook(self, name):
        """Removes the hook of that name."""
        if name not in self.local_link_hooks:
            raise KeyError(f"{type(self).__name__}.delete_hook: there is no hook {name!r}")
        self.local_link_hooks.pop(name).deleted(self)

    # Registration

    @property
    def within_init_scope(self):
        """Whether attributes that are assigned now are registered."""
        return self._within_init_scope

    @contextlib.contextmanager
    def init_scope(self):
        """Context manager: parameters (in a Chain, links too) assigned within are registered."""
        if "_params" not in self.__dict__:
            raise RuntimeError(
                f"{type(self).__name__}: call super().__init__() before entering init_scope"
            )
        before = self._within_init_scope
        self._within_init_scope = True
        try:
            yield
        finally:
            self._within_init_scope = before

    def __setattr__(self, name, value):
        if self._within_init_scope and isinstance(value, Parameter):
            self._params.add(name)
            self._persistents.discard(name)
            value.name = name
            value.to_device(self.device)
        super().__setattr__(name, value)

    def __delattr__(self, name):
        self._params.discard(name)
        self._persistents.discard(name)
        super().__delattr__(name)

    def _check_unused(self, name, kind):
        if hasattr(self, name):
            raise AttributeError(
                f"{type(self).__name__}: {kind} {name!r} cannot be added, "
                "since there is an attribute of that name"
            )

    def add_param(self, name, shape=None, dtype=np.float32, initializer=None):
        """Registers a new parameter.

        Args:
            name (str): attribute that holds it.
            shape (int or tuple of int): None leaves it uninitialized.
            dtype: its dtype, unless the initializer has one.
            initializer: initializer, number or array (then the parameter's array itself); None
                fills with NaN.

        Raises:
            AttributeError: there is an attribute of that name.
        """
        self._check_unused(name, "parameter")
        if not is_array(initializer):
            initial = math.nan if initializer is None else initializer
            own_dtype = getattr(initial, "dtype", None) if callable(initial) else None
            initializer = initializers.get_initializer(initial, own_dtype or dtype)
        with self.init_scope():
            setattr(self, name, Parameter(initializer, shape))

    def add_persistent(self, name, value):
        """Registers a new persistent value: an array, number, string or None.

        Raises:
            AttributeError: there is an attribute of that name.
        """
        self._check_unused(name, "persistent value")
        self._persistents.add(name)
        setattr(self, name, value)

    def register_persistent(self, name):
        """Makes an attribute that exists a persistent value.

        Raises:
            AttributeError: there is no attribute of that name.
        """
        if not hasattr(self, name):
            raise AttributeError(
                f"{type(self).__name__}.register_persistent: there is no attribute {name!r}"
            )
        self._persistents.add(name)
        self._params.discard(name)

    # Copies

    def copy(self, mode="share"):
        """Returns a copy of the link and all below it, without a name and not set up for updates.

        Args:
            mode (str): ``'share'``: the parameters' arrays are shared with the original, their
                gradients are not; ``'copy'``: everything is copied; ``'init'``: copied, and the
                parameters get new initial values.

        Raises:
            ValueError: ``mode`` is another.
        """
        if mode not in _COPY_MODES:
            raise ValueError(
                f"{type(self).__name__}.copy: mode must be one of {', '.join(_COPY_MODES)}, "
                f"not {mode!r}"
            )
        if mode == "share":
            return self._copy_sharing_arrays()
        copied = copy.deepcopy(self)
        copied.name = None
        for param in copied.params():
            param.update_rule = None
            if mode == "init" and param.is_initialized:
                param.initialize(param.shape)
        return copied

    def _copy_sharing_arrays(self):
        copied = copy.copy(self)
        copied._params = set(self._params)
        copied._persistents = set(self._persistents)
        copied._hooks = self._hooks and dict(self._hooks)
        copied.name = None
        for name in self._params:
            param = copied.__dict__[name] = copy.copy(self.__dict__[name])
            param.update_rule = None
            param.cleargrad()
        return copied

    def repeat(self, n_repeat, mode="init"):
        """Returns a :class:`Sequential` of ``n_repeat`` copies of the link.

        Args:
            n_repeat (int): the number of copies.
            mode (str): how to copy, see :meth:`copy`.

        Raises:
            ValueError: ``n_repeat`` is negative.
        """
        if n_repeat < 0:
            raise ValueError(
                f"{type(self).__name__}.repeat: n_repeat must not be negative, but is {n_repeat}"
            )
        return Sequential(*(self.copy(mode) for _ in range(n_repeat)))

    @classmethod
    def from_params(cls, *args, **kwargs):
        """Makes a link from its parameters, for the kinds of link that can be so made."""
        raise NotImplementedError(f"{cls.__name__} does not implement from_params")

    # Display

    @property
    def printable_specs(self):
        """Pairs of name and value that ``repr`` shows: the arguments the link was made with."""
        return iter(())

    def __repr__(self):
        return _tree(self, ())


def _tree(link, named_layers):
    """The link's specs, and a line for each layer, those of inner ones indented."""
    specs = ", ".join(f"{name}={value!r}" for name, value in link.printable_specs)
    lines = "".join(f"({name}): {_text_of(layer)},\n" for name, layer in named_layers)
    if lines:
        specs += ("," if specs else "") + "\n" + textwrap.indent(lines, "  ")
    return f"{type(link).__name__}({specs})"


def _text_of(layer):
    return repr(layer) if isinstance(layer, Link) else getattr(layer, "__name__", repr(layer))


class Chain(Link):
    """A link made of named links: assign them in :meth:`Link.init_scope`, use them in ``forward``.

        >>> class MLP(Chain):
        ...     def __init__(self):
        ...         super().__init__()
        ...         with self.init_scope():
        ...             self.l1 = L.Linear(100)
        ...             self.l2 = L.Linear(10)
        ...     def forward(self, x):
        ...         return self.l2(F.relu(self.l1(x)))

    Args:
        links: links by name.
    """

    def __init__(self, **links):
        super().__init__()
        self._children = set()
        for name, link in links.items():
            self.add_link(name, link)

    def __getitem__(self, name):
        """Returns the attribute of that name: a link, or a function that ``forward`` applies.

        Raises:
            KeyError: there is no such attribute.
        """
        if not isinstance(name, str) or not hasattr(self, name):
            raise KeyError(
                f"{type(self).__name__} has no link {name!r}; it has {sorted(self._children)}"
            )
        return getattr(self, name)

    def __setattr__(self, name, value):
        children = self.__dict__.get("_children", set())
        if not isinstance(value, Link):
            children.discard(name)
        elif self._within_init_scope:
            self._check_unused(name, "link")
            children.add(name)
        if name in children:
            value.name = name
        super().__setattr__(name, value)

    def __delattr__(self, name):
        self._children.discard(name)
        super().__delattr__(name)

    def add_link(self, name, link):
        """Registers a link under a new name.

        Raises:
            TypeError: ``link`` is none.
            AttributeError: there is an attribute of that name.
        """
        if not isinstance(link, Link):
            raise TypeError(
                f"{type(self).__name__}.add_link: link {name!r} must be a Link, "
                f"not {type(link).__name__}"
            )
        with self.init_scope():
            setattr(self, name, link)

    def _named_children(self):
        for name in sorted(self._children):
            yield name, self.__dict__[name]

    def _copy_sharing_arrays(self):
        copied = super()._copy_sharing_arrays()
        copied._children = set(self._children)
        for name in self._children:
            setattr(copied, name, self.__dict__[name].copy("share"))
        return copied

    def __repr__(self):
        return _tree(self, self._named_children())


class ChainList(Link, collections.abc.MutableSequence):
    """A link made of a list of links; it is a mutable sequence of them.

    Args:
        links: the links.
    """

    def __init__(self, *links):
        super().__init__()
        self._layers = []
        self.extend(links)

    def _check_layer(self, layer):
        if not isinstance(layer, Link):
            raise TypeError(
                f"{type(self).__name__}: elements must be links, not {type(layer).__name__}"
            )

    def __setattr__(self, name, value):
        if self._within_init_scope and isinstance(value, Link):
            raise TypeError(
                f"{type(self).__name__}: link {name!r} cannot be assigned in init_scope; use append"
            )
        super().__setattr__(name, value)

    def __len__(self):
        return len(self._layers)

    def __getitem__(self, index):
        """Returns the link at ``index``; for a slice, a list of links."""
        return self._layers[index]

    def __setitem__(self, index, layer):
        layer = list(layer) if isinstance(index, slice) else layer
        for new in layer if isinstance(index, slice) else [layer]:
            self._check_layer(new)
        self._layers[index] = layer
        self._name_children()

    def __delitem__(self, index):
        del self._layers[index]
        self._name_children()

    def insert(self, index, layer):
        """Inserts a link before ``index``."""
        self._check_layer(layer)
        self._layers.insert(index, layer)
        self._name_children()

    def add_link(self, link):
        """Appends a link."""
        self.append(link)

    def _named_children(self):
        for i, child in enumerate(layer for layer in self._layers if isinstance(layer, Link)):
            yield str(i), child

    def _name_children(self):
        for name, child in self._named_children():
            child.name = name

    def _copy_sharing_arrays(self):
        copied = super()._copy_sharing_arrays()
        copied._layers = [x.copy("share") if isinstance(x, Link) else x for x in self._layers]
        copied._name_children()
        return copied

    def __repr__(self):
        return _tree(self, enumerate(self._layers))


class Sequential(ChainList):
    """Links and functions that are applied one after the other; a mutable sequence of these.

        >>> model = Sequential(L.Linear(100), F.relu, L.Linear(10))

    In names of parameters, only the links are counted: here ``/0/W`` and ``/1/W``. Where there are
    more, those after the first are counted from the end, as Chainer does: of three links the
    last is 1 and the second 2. So its files load.

    Args:
        layers: links or other callables.
    """

    def _check_layer(self, layer):
        if not callable(layer):
            raise ValueError(
                f"{type(self).__name__}: elements must be callable, "
                f"but {layer!r} ({type(layer).__name__}) is not"
            )

    def _named_children(self):
        """Links by name. Chainer puts each behind as many links as it has layers up to its first
        link, though its list of links has no other layers: this is what defines its files."""
        links, n_before = [], 0
        for i, layer in enumerate(self._layers):
            if isinstance(layer, Link):
                n_before = n_before or i + 1
                links.insert(n_before, layer)
        return ((str(i), link) for i, link in enumerate(links))

    def forward(self, *x):
        """Applies the layers in turn, each to what the one before it returned.

        What is returned as a tuple is passed on as several arguments, a dict as named ones.
        """
        if not self._layers:
            raise RuntimeError(f"{type(self).__name__}: there is no layer to apply")
        for layer in self._layers:
            if isinstance(x, tuple):
                x = layer(*x)
            elif isinstance(x, dict):
                x = layer(**x)
            else:
                x = layer(x)
        return x

    def __add__(self, other):
        """Returns a Sequential of the layers of both."""
        if not isinstance(other, Sequential):
            return NotImplemented
        return Sequential(*self._layers, *other._layers)

    def index(self, layer, start=None, end=None):
        """Returns the index of the first occurrence of a layer, between the bounds if given."""
        for i in range(len(self))[start:end]:
            if self._layers[i] is layer or self._layers[i] == layer:
                return i
        raise ValueError(f"{type(self).__name__}: there is no layer {_text_of(layer)}")

    def count_by_layer_type(self, type_name):
        """Returns the number of layers whose class, or which as functions, have that name."""
        return sum(_type_name(layer) == type_name for layer in self._layers)

    def remove_by_layer_type(self, type_name):
        """Removes all layers whose class, or which as functions, have that name."""
        self[:] = [layer for layer in self._layers if _type_name(layer) != type_name]

    def flatten(self):
        """Returns a Sequential in which those inside this one are replaced by their layers."""
        flat = []
        for layer in self._layers:
            flat += layer.flatten() if isinstance(layer, Sequential) else [layer]
        return Sequential(*flat)

    def copyparams(self, link, copy_persistent=True):
        """Copies the values of all parameters from a Sequential of the same structure."""
        if not isinstance(link, Sequential):
            raise ValueError(
                f"{type(self).__name__}.copyparams: link must be a Sequential, "
                f"not {type(link).__name__}"
            )
        super().copyparams(link, copy_persistent)


def _type_name(layer):
    return getattr(layer, "__name__", type(layer).__name__)
