"""Links, which are functions that hold parameters, and compositions of links."""

import sys
import textwrap
from collections.abc import Callable, Iterable, MutableSequence
from typing import Any, Self

from mpchain.configuration import config
from mpchain.from_pytorch import check_arguments, with_names
from mpchain.link_hook import LinkHook, call_with_hooks
from mpchain.observers import current, span
from mpchain.parameter_tree import ParameterTree
from mpchain.utils.type_check import explain_arguments


@with_names("Link")
class Link(ParameterTree):
    """A function with parameters. Assign the parameters in :meth:`init_scope`, and compute in
    ``forward``.

        >>> class Scale(mpchain.Link):
        ...     def __init__(self, size):
        ...         super().__init__()
        ...         with self.init_scope():
        ...             self.W = mpchain.Parameter(2.0, size)
        ...     def forward(self, x):
        ...         return x * self.W
        >>> Scale(3)(np.ones((1, 3), np.float32)).array
        array([[2., 2., 2.]], dtype=float32)

    Besides parameters, a link has persistent values: attributes that are saved and moved between
    devices, but not optimized.

    Args:
        params: for each parameter, by its name, the shape or a pair of shape and dtype.

    Attributes:
        name (str): the link's name in its parent; None without a parent.
        running_statistics (tuple): names of persistent values that each rank computes from its own
            samples; the class sets them.
        needs_all_ranks (bool): whether all ranks must call the link together, because it
            communicates.
        divided_among: the communicator of the ranks among which the link's parameters are divided;
            None if the parameters are not divided.
    """

    running_statistics: tuple[str, ...] = ()
    needs_all_ranks = False
    divided_among: Any = None

    _hooks = None
    _printable = ()  # These attributes are shown by ``repr``.

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        check_arguments(cls, kwargs)
        return super().__new__(cls)

    # The methods below handle calls and hooks.

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the result of ``forward``; calls the link hooks before and after.

        A link on a GPU makes this GPU current while it computes.
        """
        if "cupy" in sys.modules and not self.device.is_current():
            with self.device.create_context():
                return self(*args, **kwargs)
        try:
            if current.observers is not None:
                with span("link", type(self).__name__, self, args) as seen:
                    seen.result = self._call(args, kwargs)
                return seen.result
            if config.link_hooks or self._hooks:
                return self._call(args, kwargs)
            return self.forward(*args, **kwargs)
        except (AttributeError, TypeError) as error:
            explain_arguments(error, type(self).__name__, self.forward, args, kwargs)
            raise

    def _call(self, args, kwargs):
        hooks = [*config.link_hooks.values(), *(self._hooks or {}).values()]
        return (
            call_with_hooks(self, hooks, args, kwargs) if hooks else self.forward(*args, **kwargs)
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the link's output; subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} does not implement forward")

    @property
    def local_link_hooks(self) -> dict[str, LinkHook]:
        """The hooks that were added to this link, by name."""
        if self._hooks is None:
            self._hooks = {}
        return self._hooks

    def add_hook(self, hook: LinkHook, name: str | None = None) -> Self:
        """Adds a :class:`LinkHook` for the calls of this link; returns the link.

        >>> from mpchain import link_hooks
        >>> linear = L.Linear(3, 2).add_hook(link_hooks.TimerHook())
        >>> list(linear.local_link_hooks)
        ['TimerHook']

        Raises:
            KeyError: the link has a hook of that name.
            TypeError: ``hook`` is not a LinkHook.
        """
        if not isinstance(hook, LinkHook):
            raise TypeError(
                f"{type(self).__name__}.add_hook: hook must be a LinkHook, not "
                f"{type(hook).__name__}"
            )
        name = hook.name if name is None else name
        if name in self.local_link_hooks:
            raise KeyError(
                f"{type(self).__name__}.add_hook: the link already has a hook {name!r}; delete it, "
                "or use another name"
            )
        self.local_link_hooks[name] = hook
        hook.added(self)
        return self

    def delete_hook(self, name: str) -> None:
        """Removes the hook that has the given name.

        Raises:
            KeyError: the link has no such hook.
        """
        if name not in self.local_link_hooks:
            raise KeyError(f"{type(self).__name__}.delete_hook: the link has no hook {name!r}")
        self.local_link_hooks.pop(name).deleted(self)

    def _copy_sharing_arrays(self):
        copied = super()._copy_sharing_arrays()
        copied._hooks = self._hooks and dict(self._hooks)
        return copied

    def repeat(self, n_repeat: int, mode: str = "init") -> "Sequential":
        """Returns a :class:`Sequential` of ``n_repeat`` copies of the link.

        >>> mpchain.Sequential(L.Linear(8, 8), F.relu).repeat(2).flatten()
        Sequential(
          (0): Linear(in_size=8, out_size=8, nobias=False),
          (1): relu,
          (2): Linear(in_size=8, out_size=8, nobias=False),
          (3): relu,
        )

        Args:
            n_repeat: the number of copies.
            mode: the mode of :meth:`copy`: ``'init'``, ``'copy'`` or ``'share'``.

        Raises:
            ValueError: ``n_repeat`` is negative.
        """
        if n_repeat < 0:
            raise ValueError(
                f"{type(self).__name__}.repeat: n_repeat must not be negative, but is {n_repeat}"
            )
        return Sequential(*(self.copy(mode) for _ in range(n_repeat)))

    @classmethod
    def from_params(cls, *args: Any, **kwargs: Any) -> Self:
        """Makes a link from arrays of its parameters; only some classes define this method."""
        raise NotImplementedError(f"{cls.__name__} does not implement from_params")

    # The methods below describe the link as text.

    @property
    def printable_specs(self) -> Iterable[tuple[str, Any]]:
        """Pairs of name and value that ``repr`` shows: the arguments the link was made with."""
        return ((name, getattr(self, name)) for name in self._printable)

    def __repr__(self) -> str:
        return _tree(self, ())


def _tree(link, named_layers):
    """Returns the specs of the link, and indented lines for its layers."""
    specs = ", ".join(f"{name}={value!r}" for name, value in link.printable_specs)
    lines = "".join(f"({name}): {_text_of(layer)},\n" for name, layer in named_layers)
    if lines:
        specs += ("," if specs else "") + "\n" + textwrap.indent(lines, "  ")
    return f"{type(link).__name__}({specs})"


def _text_of(layer):
    return repr(layer) if isinstance(layer, Link) else getattr(layer, "__name__", repr(layer))


class Chain(Link):
    """A link made of named links. Assign the links in :meth:`Link.init_scope`, and call them in
    ``forward``.

        >>> class MLP(mpchain.Chain):
        ...     def __init__(self):
        ...         super().__init__()
        ...         with self.init_scope():
        ...             self.l1 = L.Linear(100)
        ...             self.l2 = L.Linear(10)
        ...     def forward(self, x):
        ...         return self.l2(F.relu(self.l1(x)))

        >>> MLP()(np.ones((5, 784), np.float32)).shape
        (5, 10)

    Args:
        links: the links, given by name as keyword arguments.
    """

    def __init__(self, **links: Link) -> None:
        super().__init__()
        self._children = set()
        for name, link in links.items():
            self.add_link(name, link)

    def __getitem__(self, name: str) -> Any:
        """Returns the attribute that has the given name: a link, or a function that ``forward``
        applies.

        Raises:
            KeyError: the chain has no attribute with the given name.
        """
        if not isinstance(name, str) or not hasattr(self, name):
            raise KeyError(
                f"{type(self).__name__} has no link {name!r}; it has {sorted(self._children)}"
            )
        return getattr(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        children = self.__dict__.get("_children", set())
        if not isinstance(value, Link):
            children.discard(name)
        elif self._within_init_scope:
            self._check_unused(name, "link")
            children.add(name)
        if name in children:
            value.name = name
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._children.discard(name)
        super().__delattr__(name)

    def add_link(self, name: str, link: Link) -> None:
        """Registers a link under a new name.

        >>> chain = mpchain.Chain()
        >>> chain.add_link("l1", L.Linear(3, 2))
        >>> chain["l1"] is chain.l1
        True

        Raises:
            TypeError: ``link`` is not a Link.
            AttributeError: the chain already has an attribute with the given name.
        """
        if not isinstance(link, Link):
            raise TypeError(
                f"{type(self).__name__}.add_link: link {name!r} must be a Link, "
                f"not {type(link).__name__}"
            )
        with self.init_scope():
            setattr(self, name, link)

    def _child_links(self):
        return [self.__dict__[name] for name in sorted(self._children)]

    def _named_children(self):
        return zip(sorted(self._children), self._child_links())

    def _copy_sharing_arrays(self):
        copied = super()._copy_sharing_arrays()
        copied._children = set(self._children)
        for name in self._children:
            setattr(copied, name, self.__dict__[name].copy("share"))
        return copied

    def __repr__(self) -> str:
        return _tree(self, self._named_children())


class ChainList(Link, MutableSequence[Any]):
    """A link made of a list of links, with the methods of a mutable sequence.

        >>> class Residual(mpchain.ChainList):
        ...     def forward(self, x):
        ...         for link in self:
        ...             x = x + F.tanh(link(x))
        ...         return x
        >>> model = Residual(L.Linear(4, 4), L.Linear(4, 4))
        >>> model.append(L.Linear(4, 4))
        >>> len(model), model(np.ones((5, 4), np.float32)).shape
        (3, (5, 4))

    Args:
        links: the links.
    """

    def __init__(self, *links: Any) -> None:
        super().__init__()
        self._layers = []
        self.extend(links)

    def _check_layer(self, layer):
        if not isinstance(layer, Link):
            raise TypeError(
                f"{type(self).__name__}: elements must be links, not {type(layer).__name__}"
            )

    def __setattr__(self, name: str, value: object) -> None:
        if self._within_init_scope and isinstance(value, Link):
            raise TypeError(
                f"{type(self).__name__}: link {name!r} cannot be assigned in init_scope; use append"
            )
        super().__setattr__(name, value)

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, index: int | slice) -> Any:
        """Returns the link at ``index``; for a slice, a list of links."""
        return self._layers[index]

    def __setitem__(self, index: int | slice, layer: Any) -> None:
        layer = list(layer) if isinstance(index, slice) else layer
        for new in layer if isinstance(index, slice) else [layer]:
            self._check_layer(new)
        self._layers[index] = layer
        self._name_children()

    def __delitem__(self, index: int | slice) -> None:
        del self._layers[index]
        self._name_children()

    def insert(self, index: int, layer: object) -> None:
        """Inserts a link before ``index``."""
        self._check_layer(layer)
        self._layers.insert(index, layer)
        self._name_children()

    def add_link(self, link: Link) -> None:
        """Appends a link."""
        self.append(link)

    def _child_links(self):
        return [layer for layer in self._layers if isinstance(layer, Link)]

    def _named_children(self):
        return ((str(i), link) for i, link in enumerate(self._child_links()))

    def _name_children(self):
        for name, child in self._named_children():
            child.name = name

    def _copy_sharing_arrays(self):
        copied = super()._copy_sharing_arrays()
        copied._layers = [x.copy("share") if isinstance(x, Link) else x for x in self._layers]
        copied._name_children()
        return copied

    def __repr__(self) -> str:
        return _tree(self, enumerate(self._layers))


class Sequential(ChainList):
    """A mutable sequence of links and functions, which are applied one after the other.

        >>> model = mpchain.Sequential(L.Linear(100), F.relu, L.Linear(10))
        >>> model(np.ones((5, 784), np.float32)).shape
        (5, 10)
        >>> [path for path, _ in model.namedparams()]
        ['/0/W', '/0/b', '/1/W', '/1/b']

    The numbers in names of parameters count only links, not functions. With k functions before the
    first link, the first k + 1 links are counted in order, and the others after them from the end,
    as in Chainer, so that Chainer's files load: of three links at the beginning, the last is 1 and
    the second 2.

    Args:
        layers: links or other callables.
    """

    def _check_layer(self, layer):
        if not callable(layer):
            raise ValueError(
                f"{type(self).__name__}: elements must be callable, "
                f"but {layer!r} ({type(layer).__name__}) is not"
            )

    def _child_links(self):
        """Returns the links in the order of Chainer's files: each link is inserted at 1 + the index
        of the first link among all layers, although the list holds only links."""
        links, n_before = [], 0
        for i, layer in enumerate(self._layers):
            if isinstance(layer, Link):
                n_before = n_before or i + 1
                links.insert(n_before, layer)
        return links

    def _shown_children(self):
        return ((str(i), layer) for i, layer in enumerate(self._layers) if isinstance(layer, Link))

    def forward(self, *x: Any, **options: Any) -> Any:
        """Applies the layers in order, each to the result of the previous layer.

        A tuple is passed on as several arguments, a dict as keyword arguments.

        Raises:
            RuntimeError: the Sequential is empty.
            TypeError: there are keyword arguments.
        """
        if options:
            name = next(iter(options))
            raise TypeError(
                f"{type(self).__name__}: a keyword argument belongs to one layer, but {name} was "
                "given to the Sequential; give it to the layer, as in L.Linear(8, 4, "
                f"n_batch_axes=2) or lambda x: layer(x, {name}={options[name]!r})"
            )
        if not self._layers:
            raise RuntimeError(
                f"{type(self).__name__}: the Sequential is empty; append a layer before calling it"
            )
        for layer in self._layers:
            if isinstance(x, tuple):
                x = layer(*x)
            elif isinstance(x, dict):
                x = layer(**x)
            else:
                x = layer(x)
        return x

    def __add__(self, other: "Sequential") -> "Sequential":
        """Returns a new Sequential with the layers of this one, followed by the layers of
        ``other``."""
        if not isinstance(other, Sequential):
            return NotImplemented
        return Sequential(*self._layers, *other._layers)

    def index(
        self, layer: Callable[..., Any], start: int | None = None, end: int | None = None
    ) -> int:
        """Returns the index of the first occurrence of a layer, from ``start`` up to but without
        ``end``."""
        for i in range(len(self))[start:end]:
            if self._layers[i] is layer or self._layers[i] == layer:
                return i
        raise ValueError(f"{type(self).__name__}: there is no layer {_text_of(layer)}")

    def count_by_layer_type(self, type_name: str) -> int:
        """Returns the number of links whose class has the given name, and of functions that have
        that name.

        >>> model = mpchain.Sequential(L.Linear(8), F.relu, L.Linear(8), F.relu)
        >>> model.count_by_layer_type("relu")
        2
        """
        return sum(_type_name(layer) == type_name for layer in self._layers)

    def remove_by_layer_type(self, type_name: str) -> None:
        """Removes all links whose class has the given name, and all functions that have that
        name."""
        self[:] = [layer for layer in self._layers if _type_name(layer) != type_name]

    def flatten(self) -> "Sequential":
        """Returns a Sequential in which nested Sequentials are replaced by their layers."""
        flat = []
        for layer in self._layers:
            flat += layer.flatten() if isinstance(layer, Sequential) else [layer]
        return Sequential(*flat)

    def copyparams(self, link: Link, copy_persistent: bool = True) -> None:
        """Copies the values of all parameters, and of persistent values if ``copy_persistent`` is
        True, from a Sequential of the same structure."""
        if not isinstance(link, Sequential):
            raise ValueError(
                f"{type(self).__name__}.copyparams: link must be a Sequential, "
                f"not {type(link).__name__}"
            )
        super().copyparams(link, copy_persistent)


def _type_name(layer):
    return getattr(layer, "__name__", type(layer).__name__)
