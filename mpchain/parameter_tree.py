"""The parameters of links: registration, walks over the tree of links, copies, and saving to
files."""

import contextlib
import copy
import math
import operator
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from mpchain import backend, initializers
from mpchain.backends.cuda import is_gpu_array
from mpchain.device_resident import DeviceResident, DeviceResidentsVisitor
from mpchain.serializer import AbstractSerializer, SerializationError
from mpchain.typing import Array, DTypeLike, InitialValue
from mpchain.variable import Parameter

_COPY_MODES = ("share", "copy", "init")


def is_array(value: object) -> bool:
    """Returns whether a value is a NumPy or CuPy array.

    >>> is_array(np.zeros(2)), is_array(0.0)
    (True, False)
    """
    return isinstance(value, np.ndarray) or is_gpu_array(value)


def _held(value):
    """Yields the links and parameters in lists, tuples and dicts, including nested lists, tuples
    and dicts."""
    if isinstance(value, (list, tuple, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            if isinstance(each, (ParameterTree, Parameter)):
                yield each
            else:
                yield from _held(each)


def _copy_values(param, source):
    if source.is_initialized and not param.is_initialized:
        param.array = param.device.send(source.array.astype(param.dtype))
    elif source.is_initialized and source.shape == param.shape:
        param.copydata(source)
    elif source.is_initialized or param.is_initialized:
        raise ValueError(
            f"copyparams: parameter {param.name!r} of shape {_shape_of(param)} cannot take the "
            f"values of the source's parameter of shape {_shape_of(source)}"
        )


def copy_persistents(link: "ParameterTree", source: "ParameterTree") -> None:
    """Copies persistent values from ``source`` to ``link``, two links of the same class. The values
    of child links are not copied.

    >>> bn, other = L.BatchNormalization(2), L.BatchNormalization(2)
    >>> bn.avg_mean += 3
    >>> copy_persistents(other, bn)
    >>> other.avg_mean
    array([3., 3.], dtype=float32)
    """
    for name in sorted(link._persistents):
        old, new = link.__dict__[name], source.__dict__[name]
        if not (is_array(old) and is_array(new)):
            new = copy.deepcopy(new)
            link.__dict__[name] = link.device.send(new) if is_array(new) else new
        elif old.shape == new.shape:
            backend.copyto(old, new)
        else:
            raise ValueError(
                f"copyparams: persistent value {name!r} of shape {old.shape} cannot take the "
                f"values of the source's value of shape {new.shape}"
            )


def _shape_of(param):
    return param.shape if param.is_initialized else "unknown"


class ParameterTree(DeviceResident):
    """The parameters and persistent values of a :class:`Link` and of all its descendants.

    >>> model = mpchain.Sequential(L.Linear(3, 2), F.relu, L.Linear(2, 1, nobias=True))
    >>> [(path, param.shape) for path, param in model.namedparams()]
    [('/0/W', (2, 3)), ('/0/b', (2,)), ('/1/W', (1, 2))]
    >>> model.count_params()
    10
    >>> [path for path, _ in model.namedlinks()]
    ['/', '/0', '/1']
    """

    name: str | None = None
    _within_init_scope = False

    def __init__(self, **params: Any) -> None:
        self._params = set()
        self._persistents = set()
        for name, spec in params.items():
            has_dtype = isinstance(spec, tuple) and len(spec) == 2 and not np.isscalar(spec[0])
            self.add_param(name, *(spec if has_dtype else (spec,)))

    # The methods below register parameters and persistent values.

    # For type checkers: add_param, add_persistent and add_link create attributes, and links are
    # callable.
    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    @property
    def within_init_scope(self) -> bool:
        """Whether the link is inside :meth:`init_scope`, where assigned attributes are
        registered."""
        return self._within_init_scope

    @contextlib.contextmanager
    def init_scope(self) -> Iterator[None]:
        """Context manager: registers the parameters, and in a Chain the links, that are assigned
        within the block.

        Parameters and links in a list, tuple or dict are not registered. At its end, the context
        manager warns of such parameters and links if they are not registered elsewhere.

        >>> link = mpchain.Link()
        >>> with link.init_scope():
        ...     link.scale = mpchain.Parameter(1.0, (2,))
        >>> [path for path, _ in link.namedparams()]
        ['/scale']
        """
        if "_params" not in self.__dict__:
            raise RuntimeError(
                f"{type(self).__name__}: call super().__init__() before entering init_scope"
            )
        before, old = self._within_init_scope, dict(vars(self))
        self._within_init_scope = True
        try:
            yield
        finally:
            self._within_init_scope = before
        if not before:
            self._look_into_containers({k: v for k, v in vars(self).items() if v is not old.get(k)})

    def _look_into_containers(self, new):
        """Warns of unregistered links and parameters in new lists, tuples and dicts.

        The check takes place at the end of the scope, because ``add_link`` may follow the
        assignment.
        """
        known = set()
        for name, value in new.items():
            held = list(_held(value))
            if held and not known:
                known = {*map(id, self.links()), *map(id, self.params())}
            if any(id(each) not in known for each in held):
                kind = type(value).__name__
                warnings.warn(
                    f"{type(self).__name__}: the links and parameters in the {kind} {name!r} are "
                    "not registered, so they are neither trained nor saved: make it an "
                    "mpchain.ChainList or mpchain.Sequential of links, or use add_link and "
                    "add_param",
                    UserWarning,
                    stacklevel=4,
                )

    def __setattr__(self, name: str, value: object) -> None:
        if self._within_init_scope and isinstance(value, Parameter):
            self._params.add(name)
            self._persistents.discard(name)
            value.name = name
            value.to_device(self.device)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._params.discard(name)
        self._persistents.discard(name)
        super().__delattr__(name)

    def _check_unused(self, name, kind):
        if hasattr(self, name):
            raise AttributeError(
                f"{type(self).__name__}: {kind} {name!r} cannot be added: "
                "the link has an attribute of that name"
            )

    def add_param(
        self,
        name: str,
        shape: int | tuple[int, ...] | None = None,
        dtype: DTypeLike = np.float32,
        initializer: InitialValue = None,
    ) -> None:
        """Registers a new parameter.

        >>> link = mpchain.Link()
        >>> link.add_param("W", (2, 3), initializer=1)
        >>> link.W.shape
        (2, 3)

        Args:
            name: the attribute that holds the parameter.
            shape: the parameter's shape; None means the shape of ``initializer`` if this is an
                array, and otherwise leaves the parameter uninitialized.
            dtype: the parameter's dtype, unless the initializer has one.
            initializer: initializer, number, or array, which becomes the parameter's array; None
                fills with NaN.

        Raises:
            AttributeError: the link has an attribute of that name.
        """
        self._check_unused(name, "parameter")
        if not is_array(initializer):
            initial = math.nan if initializer is None else initializer
            own_dtype = getattr(initial, "dtype", None) if callable(initial) else None
            initializer = initializers.get_initializer(initial, own_dtype or dtype)
        with self.init_scope():
            setattr(self, name, Parameter(initializer, shape))

    def add_persistent(self, name: str, value: Array | float | str | None) -> None:
        """Registers a new persistent value, which is saved but not optimized.

        Raises:
            AttributeError: the link has an attribute of that name.
        """
        self._check_unused(name, "persistent value")
        self._persistents.add(name)
        setattr(self, name, value)

    def register_persistent(self, name: str) -> None:
        """Makes an existing attribute a persistent value.

        >>> link = mpchain.Link()
        >>> link.n_calls = 0
        >>> link.register_persistent("n_calls")  # save_npz now saves it with the parameters

        Raises:
            AttributeError: the link has no attribute of that name.
        """
        if not hasattr(self, name):
            raise AttributeError(
                f"{type(self).__name__}.register_persistent: there is no attribute {name!r}"
            )
        self._persistents.add(name)
        self._params.discard(name)

    # The methods below copy the tree.

    def copy(self, mode: str = "share") -> Self:
        """Returns a copy of the link and its descendants. The copy has no name and no update rules.

        >>> linear = L.Linear(3, 2)
        >>> linear.copy("share").W.array is linear.W.array
        True
        >>> bool((linear.copy("init").W.array == linear.W.array).any())
        False

        Args:
            mode: ``'share'`` shares the arrays of parameters and persistent values, but not
                gradients, with the original; ``'copy'`` copies everything; ``'init'`` copies
                everything, and draws new initial values for the parameters (NaN for a Parameter
                that was made from an array).

        Raises:
            ValueError: ``mode`` is not one of these strings.
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
                device = param.device
                param.initialize(param.shape)
                param.to_device(device)
        return copied

    def _copy_sharing_arrays(self):
        copied = copy.copy(self)
        copied._params = set(self._params)
        copied._persistents = set(self._persistents)
        copied.name = None
        for name in self._params:
            param = copied.__dict__[name] = copy.copy(self.__dict__[name])
            param.update_rule = None
            param.cleargrad()
        return copied

    # The methods below walk over the tree.

    def _child_links(self) -> "Sequence[ParameterTree]":
        """Returns the children of this link, in the order of :meth:`_named_children`."""
        return ()

    def _named_children(self) -> "Iterator[tuple[str, ParameterTree]]":
        """Yields pairs of name and link for the children of this link."""
        return iter(())

    def children(self) -> "Iterator[ParameterTree]":
        """Yields the children of this link."""
        yield from self._child_links()

    def namedlinks(self, skipself: bool = False) -> "Iterator[tuple[str, ParameterTree]]":
        """Yields pairs of path and link: this link with the path ``'/'``, unless ``skipself`` is
        True, then its descendants."""
        if not skipself:
            yield "/", self
        for name, child in self._named_children():
            yield f"/{name}", child
            for path, link in child.namedlinks(skipself=True):
                yield f"/{name}{path}", link

    def shownlinks(self) -> "Iterator[tuple[str, ParameterTree]]":
        """Yields the links that :meth:`namedlinks` yields, with paths for display. In a Sequential,
        a path has the index of the link among all layers, which can differ from the link's name in
        files.

        >>> model = mpchain.Sequential(L.Linear(2), F.relu, L.Linear(2), F.relu, L.Linear(2))
        >>> [path for path, _ in model.shownlinks()]
        ['/', '/0', '/2', '/4']
        """
        yield "/", self
        for name, child in self._shown_children():
            for path, link in child.shownlinks():
                yield f"/{name}{path}".rstrip("/"), link

    def _shown_children(self):
        return self._named_children()

    def links(self, skipself: bool = False) -> "Iterator[ParameterTree]":
        """Yields this link, unless ``skipself`` is True, and its descendants."""
        for _, link in self.namedlinks(skipself):
            yield link

    def namedparams(self, include_uninit: bool = True) -> Iterator[tuple[str, Parameter]]:
        """Yields pairs of path and parameter: the parameters of this link, sorted by name, and then
        those of its descendants.

        A parameter that several links share is yielded once, under the first of its paths.

        Args:
            include_uninit: whether to include parameters without an array.
        """
        seen = set()
        for path, param in self._all_named_params():
            if id(param) not in seen and (include_uninit or param.is_initialized):
                seen.add(id(param))
                yield path, param

    def _all_named_params(self):
        for name in sorted(self._params):
            yield f"/{name}", self.__dict__[name]
        for name, child in self._named_children():
            for path, param in child._all_named_params():
                yield f"/{name}{path}", param

    def params(self, include_uninit: bool = True) -> Iterator[Parameter]:
        """Yields the parameters of this link and its descendants (see :meth:`namedparams`)."""
        found: dict[int, Parameter] = {}
        self._collect_params(found)
        params = found.values()
        yield from params if include_uninit else [p for p in params if p.is_initialized]

    def _collect_params(self, found):
        """Adds parameters to ``found``, keyed by ``id``, in the order of :meth:`namedparams`."""
        attributes = self.__dict__
        for name in sorted(self._params):
            param = attributes[name]
            found[id(param)] = param
        for child in self._child_links():
            child._collect_params(found)

    def count_params(self) -> int:
        """Returns the number of elements of all parameters; warns if some have no array yet."""
        count = 0
        for path, param in self.namedparams():
            if param.is_initialized:
                count += param.size
            else:
                warnings.warn(
                    f"{type(self).__name__}.count_params: parameter {path} is not initialized "
                    "and not counted",
                    UserWarning,
                    stacklevel=2,
                )
        return count

    def device_resident_accept(self, visitor: DeviceResidentsVisitor) -> None:
        """Calls the methods of ``visitor`` with the link, its parameters and persistent arrays, and
        its descendants."""
        super().device_resident_accept(visitor)
        attributes = self.__dict__
        for name in sorted(self._params):
            visitor.visit_variable(attributes[name])
        for name in sorted(self._persistents):
            if is_array(attributes[name]):
                attributes[name] = visitor.visit_array(attributes[name])
        for child in self.children():
            child.device_resident_accept(visitor)

    # The methods below copy values and gradients.

    def copyparams(self, link: "ParameterTree", copy_persistent: bool = True) -> None:
        """Copies the values of all parameters from a link of the same structure.

        >>> target, source = L.Linear(3, 2), L.Linear(3, 2)
        >>> target.copyparams(source)
        >>> bool((target.W.array == source.W.array).all())
        True

        Args:
            link: the source.
            copy_persistent: whether to copy persistent values too.

        Raises:
            ValueError: ``link`` lacks a link, parameter or persistent value of this tree, a shape
                differs, or a parameter has values in this link but not in ``link``.
        """
        for mine, other in self.paired_with(link, "copyparams"):
            for name in sorted(mine._params):
                _copy_values(mine.__dict__[name], other.__dict__[name])
            if copy_persistent:
                copy_persistents(mine, other)

    def addgrads(self, link: "ParameterTree") -> None:
        """Adds the gradients of a link of the same structure to the gradients of this link."""
        for mine, other in self.paired_with(link, "addgrads"):
            for name in mine._params:
                mine.__dict__[name].addgrad(other.__dict__[name])

    def paired_with(
        self, link: "ParameterTree", caller: str
    ) -> "Iterator[tuple[ParameterTree, ParameterTree]]":
        """Yields pairs of corresponding links of two trees of the same structure: a link of this
        tree, and a link of the other tree.

        Args:
            link: the root of the other tree.
            caller: the name of the calling method, for error messages.

        Raises:
            TypeError: ``link`` is not a Link.
            ValueError: ``link`` lacks a link, parameter or persistent value of this tree.
        """
        if not isinstance(link, ParameterTree):
            kind = type(link).__name__
            raise TypeError(f"{type(self).__name__}.{caller}: link must be a Link, not {kind}")
        others = dict(link.namedlinks())
        for path, mine in self.namedlinks():
            other, wanted = others.get(path), mine._params | mine._persistents
            lacking = wanted - other.__dict__.keys() if other is not None else {type(mine).__name__}
            if lacking or other is None:
                raise ValueError(
                    f"{type(self).__name__}.{caller}: link must have the same structure, but at "
                    f"{path} it lacks {', '.join(sorted(lacking))}"
                )
            yield mine, other

    def _shape_fits(self, name, shape):
        """Returns whether an uninitialized parameter may load an array of the given shape."""
        return True

    # The methods below serve training.

    def cleargrads(self) -> None:
        """Removes the gradients of all parameters."""
        for param in self.params():
            param.cleargrad()

    def zerograds(self) -> None:
        """Fills the gradients of all parameters with zeros. Deprecated: use :meth:`cleargrads`."""
        warnings.warn(
            "Link.zerograds is deprecated: use cleargrads", DeprecationWarning, stacklevel=2
        )
        for param in self.params():
            param.zerograd()

    def enable_update(self) -> None:
        """Lets optimizers update the parameters, which is the default."""
        self._set_update_enabled(True)

    def disable_update(self) -> None:
        """Keeps optimizers, including optimizers that are set up later, from updating the
        parameters.

        >>> model = mpchain.Sequential(L.Linear(3, 2), L.Linear(2, 1))
        >>> model[0].disable_update()  # only the last layer is trained
        >>> optimizer = optimizers.SGD().setup(model)
        >>> model[0].update_enabled, model[1].update_enabled
        (False, True)
        """
        self._set_update_enabled(False)

    def _set_update_enabled(self, enabled):
        for param in self.params():
            param.update_enabled = enabled
            if param.update_rule is not None:
                param.update_rule.enabled = enabled

    @property
    def update_enabled(self) -> bool:
        """Whether an optimizer updates any of the parameters."""
        rules = (param.update_rule for param in self.params())
        return any(rule is not None and rule.enabled for rule in rules)

    # The methods below save and restore the tree.

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores parameters and persistent values of the link and its descendants."""
        attributes = self.__dict__
        for name in sorted(self._params):
            param = attributes[name]
            array = serializer(name, param.array)
            if array is None and param.is_initialized:
                raise SerializationError(
                    f"{type(self).__name__}.serialize: parameter {name!r} has values, but the file "
                    "was saved before it was initialized: load into a link whose parameter is not "
                    "initialized"
                )
            if array is not None and not param.is_initialized:
                if not self._shape_fits(name, array.shape):
                    raise SerializationError(
                        f"{type(self).__name__}.serialize: parameter {name!r} of shape "
                        f"{array.shape} does not fit {self!r}"
                    )
                param.array = param.device.send(array.astype(param.dtype))
        for name in sorted(self._persistents):
            value = serializer.persistent(name, attributes[name])
            is_new = is_array(value) and value is not attributes[name]
            attributes[name] = self.device.send(value) if is_new else value
        for name, child in self._named_children():
            child.serialize(serializer[name])


class TreeOutline:
    """The links and parameters of a tree, as a walk over the tree found them.

    :meth:`describes` finds out whether the tree is unchanged in much less time than another walk.

    >>> model = mpchain.Sequential(L.Linear(3, 2))
    >>> outline = TreeOutline(model)
    >>> outline.describes(model)
    True
    >>> model.append(L.Linear(2, 1))
    >>> outline.describes(model)
    False

    Args:
        tree: the link at the root.
    """

    def __init__(self, tree: ParameterTree):
        self._tree = tree
        places = []
        for attributes in map(vars, tree.links()):
            registers = [name for name in _REGISTERS if name in attributes]
            names = {*attributes["_params"], *attributes.get("_children", ())}
            places += [(attributes, name, attributes[name]) for name in (*registers, *names)]
        self._attributes, self._names, self._met = zip(*places)
        self._registers = [met for _, name, met in places if name in _REGISTERS]
        self._registered = list(map(copy.copy, self._registers))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._tree,)  # A copy is the outline of the copied tree.

    def describes(self, tree: ParameterTree) -> bool:
        """Returns whether ``tree`` is the tree of this outline and has the same links, parameters
        and names as before."""
        try:
            now = map(operator.getitem, self._attributes, self._names)
            are_same = tree is self._tree and all(map(operator.is_, now, self._met))
        except KeyError:
            return False
        return are_same and self._registers == self._registered


_REGISTERS = ("_params", "_children", "_layers")
