"""Trees of objects with parameters: walks over them, and what is done to all parameters."""

import copy
import warnings

import numpy as np

from mpchain import backend
from mpchain.backends.cuda import is_gpu_array
from mpchain.device_resident import DeviceResident
from mpchain.serializer import SerializationError


def is_array(value):
    """Whether a value is a NumPy or CuPy array."""
    return isinstance(value, np.ndarray) or is_gpu_array(value)


def _copy_values(param, source):
    if source.is_initialized and not param.is_initialized:
        param.array = param.device.send(source.array.astype(param.dtype))
    elif source.is_initialized and source.shape == param.shape:
        param.copydata(source)
    elif source.is_initialized or param.is_initialized:
        raise ValueError(
            f"copyparams: parameter {param.name!r} of shape {_shape_of(param)} cannot take the "
            f"values of one of shape {_shape_of(source)}"
        )


def copy_persistents(link, source):
    """Copies the persistent values of a link, without those below it, from one of the same kind."""
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
                f"values of one of shape {new.shape}"
            )


def _shape_of(param):
    return param.shape if param.is_initialized else "unknown"


class ParameterTree(DeviceResident):
    """What a :class:`Link` is to those who train, move and save it.

    Subclasses set ``_params`` and ``_persistents``, the names of attributes that are parameters and
    persistent values, and tell their children.
    """

    def _named_children(self):
        """Yields pairs of name and link."""
        return iter(())

    def children(self):
        """Yields the links directly below this one."""
        for _, child in self._named_children():
            yield child

    def namedlinks(self, skipself=False):
        """Yields pairs of path and link: this link as ``'/'``, then all below it."""
        if not skipself:
            yield "/", self
        for name, child in self._named_children():
            yield f"/{name}", child
            for path, link in child.namedlinks(skipself=True):
                yield f"/{name}{path}", link

    def links(self, skipself=False):
        """Yields this link and all below it."""
        for _, link in self.namedlinks(skipself):
            yield link

    def namedparams(self, include_uninit=True):
        """Yields pairs of path and parameter, of this link and all below it, sorted.

        A parameter that several links share comes once, under the first of its paths.

        Args:
            include_uninit (bool): whether parameters without array come too.
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

    def params(self, include_uninit=True):
        """Yields the parameters of this link and all below it (see :meth:`namedparams`)."""
        for _, param in self.namedparams(include_uninit):
            yield param

    def count_params(self):
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

    def device_resident_accept(self, visitor):
        """Lets ``visitor`` see the link, its parameters and persistent arrays, and all below it."""
        super().device_resident_accept(visitor)
        attributes = self.__dict__
        for name in sorted(self._params):
            visitor.visit_variable(attributes[name])
        for name in sorted(self._persistents):
            if is_array(attributes[name]):
                attributes[name] = visitor.visit_array(attributes[name])
        for child in self.children():
            child.device_resident_accept(visitor)

    # Values

    def copyparams(self, link, copy_persistent=True):
        """Copies the values of all parameters from a link of the same structure.

        Args:
            link (Link): where from.
            copy_persistent (bool): whether persistent values are copied too.

        Raises:
            ValueError: the structure or a shape differs, or a parameter has values only here.
        """
        for mine, other in self.paired_with(link, "copyparams"):
            for name in sorted(mine._params):
                _copy_values(mine.__dict__[name], other.__dict__[name])
            if copy_persistent:
                copy_persistents(mine, other)

    def addgrads(self, link):
        """Adds the gradients of a link of the same structure to this one's."""
        for mine, other in self.paired_with(link, "addgrads"):
            for name in mine._params:
                mine.__dict__[name].addgrad(other.__dict__[name])

    def paired_with(self, link, caller):
        """Yields pairs of corresponding links, this one's and those of one of the same structure.

        Args:
            link (Link): the other one.
            caller (str): what the error names.

        Raises:
            TypeError: ``link`` is none.
            ValueError: it lacks what this one has.
        """
        if not isinstance(link, ParameterTree):
            kind = type(link).__name__
            raise TypeError(f"{type(self).__name__}.{caller}: link must be a Link, not {kind}")
        others = dict(link.namedlinks())
        for path, mine in self.namedlinks():
            other, wanted = others.get(path), mine._params | mine._persistents
            lacking = wanted - other.__dict__.keys() if other is not None else {type(mine).__name__}
            if lacking:
                raise ValueError(
                    f"{type(self).__name__}.{caller}: link must have the same structure, but at "
                    f"{path} it lacks {', '.join(sorted(lacking))}"
                )
            yield mine, other

    def _shape_fits(self, name, shape):
        """Whether an uninitialized parameter may get an array of that shape from a file."""
        return True

    # Training

    def cleargrads(self):
        """Removes the gradients of all parameters."""
        for param in self.params():
            param.cleargrad()

    def zerograds(self):
        """Fills the gradients of all parameters with zeros. Deprecated: use :meth:`cleargrads`."""
        warnings.warn(
            "Link.zerograds is deprecated: use cleargrads", DeprecationWarning, stacklevel=2
        )
        for param in self.params():
            param.zerograd()

    def enable_update(self):
        """Lets optimizers update the parameters, which they do by default."""
        self._set_update_enabled(True)

    def disable_update(self):
        """Lets optimizers leave the parameters as they are, those that are set up later, too."""
        self._set_update_enabled(False)

    def _set_update_enabled(self, enabled):
        for param in self.params():
            param._update_enabled = enabled
            if param.update_rule is not None:
                param.update_rule.enabled = enabled

    @property
    def update_enabled(self):
        """Whether an optimizer may update any of the parameters."""
        rules = (param.update_rule for param in self.params())
        return any(rule is not None and rule.enabled for rule in rules)

    # Saving

    def serialize(self, serializer):
        """Saves or restores parameters and persistent values of the link and all below it."""
        attributes = self.__dict__
        for name in sorted(self._params):
            param = attributes[name]
            array = serializer(name, param.array)
            if array is None and param.is_initialized:
                raise SerializationError(
                    f"{type(self).__name__}.serialize: parameter {name!r} has values, but was not "
                    "initialized when it was saved"
                )
            if array is not None and not param.is_initialized:
                if not self._shape_fits(name, array.shape):
                    raise SerializationError(
                        f"{type(self).__name__}.serialize: parameter {name!r} of shape "
                        f"{array.shape} does not fit {self!r}"
                    )
                param.array = param.device.send(array.astype(param.dtype))
        persistent = getattr(serializer, "persistent", serializer)
        for name in sorted(self._persistents):
            value = persistent(name, attributes[name])
            is_new = is_array(value) and value is not attributes[name]
            attributes[name] = self.device.send(value) if is_new else value
        for name, child in self._named_children():
            child.serialize(serializer[name])
