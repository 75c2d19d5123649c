"""Steps that read numbers from Python objects that change between two calls.

Each row of ``_ROWS`` makes an object that holds a number, reads the number in a step, and changes
it.
"""

import array
import collections
import contextvars
import ctypes
import dataclasses
import fractions
import functools
import importlib
import multiprocessing
import operator
import os
import queue
import sys
import threading
import types

import numpy as np

import mpchain
import mpchain.functions as F
from tests.captured.user_programs import model_of, trained

FACTOR = 1.0
_VARIABLE = "MPCHAIN_TEST_FACTOR"
_get_factor = operator.attrgetter("factor")


class Holder:
    """Stores a number, on which the results of its special methods depend."""

    def __init__(self):
        self.factor = 1.0

    def __call__(self):
        return self.factor

    def __getitem__(self, _):
        return self.factor

    def __mul__(self, other):
        return self.factor * other

    def __neg__(self):
        return -self.factor

    def __float__(self):
        return self.factor

    def __format__(self, _):
        return str(self.factor)

    def __enter__(self):
        return self.factor

    def __exit__(self, *_):
        pass

    def __iter__(self):
        yield self.factor

    def __len__(self):
        return int(self.factor)

    def __contains__(self, _):
        return self.factor > 1

    def __bool__(self):
        return self.factor <= 1

    def __lt__(self, other):
        return self.factor < other

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self.factor


class Stored:
    """A descriptor whose number is stored under another name."""

    def __set_name__(self, owner, name):
        self.name = f"_{name}"

    def __get__(self, holder, owner=None):
        return holder.__dict__[self.name]


class OfDescriptor:
    factor = Stored()

    def __init__(self):
        self._factor = 1.0


class OfCachedProperty:
    def __init__(self):
        self.base = 1.0

    @functools.cached_property
    def factor(self):
        return self.base


@dataclasses.dataclass
class Setting:
    factor: float = 1.0


class Kind(type):
    @property
    def factor(cls):
        return cls.hidden


class OfMetaclass(metaclass=Kind):
    hidden = 1.0

    @classmethod
    def by_classmethod(cls):
        return cls.hidden

    @staticmethod
    def by_staticmethod():
        return OfMetaclass.hidden


def _of_with(holder):
    with holder as factor:
        return factor


def _of_match(setting):
    match setting:
        case Setting(factor=factor):
            return factor


def _of_match_by_position(setting):
    match setting:
        case Setting(factor):
            return factor


def _module(name="mpchain_test_settings"):
    module = types.ModuleType(name)
    module.factor = 1.0
    sys.modules[name] = module
    return module


def _of_import(_):
    import mpchain_test_settings

    return mpchain_test_settings.factor


def _of_import_from(_):
    from mpchain_test_settings import factor

    return factor


def _of_importlib(_):
    return importlib.import_module("mpchain_test_settings").factor


def _of_global(value=None):
    globals()["FACTOR"] = 1.0 if value is None else value
    return globals()


def _of_environment():
    os.environ[_VARIABLE] = "1"


def _local():
    local = threading.local()
    local.factor = 1.0
    return local


def _queue():
    made = queue.Queue()
    made.put(1.0)
    return made


def _set_attribute(holder):
    holder.factor = 2.0


def _set_attribute_of_first(container):
    container[0].factor = 2.0


def _set_first(container):
    container[0] = 2.0


def _set_item(container):
    container["factor"] = 2.0


def _prefix(parts=("fac", "tor")):
    return "".join(parts)


_ROWS = {
    "called": (Holder, lambda o: o(), _set_attribute),
    "index": (Holder, lambda o: o[0], _set_attribute),
    "operator": (Holder, lambda o: o * 1.0, _set_attribute),
    "sign": (Holder, lambda o: -o, _set_attribute),
    "as_a_float": (Holder, float, _set_attribute),
    "formatted": (Holder, lambda o: float(f"{o}"), _set_attribute),
    "with_statement": (Holder, _of_with, _set_attribute),
    "next_of_iter": (Holder, lambda o: next(iter(o)), _set_attribute),
    "comprehension": (Holder, lambda o: sum(x for x in o), _set_attribute),
    "length": (Holder, lambda o: len(o) + 0.5, _set_attribute),
    "membership": (Holder, lambda o: 2.0 if 0 in o else 1.0, _set_attribute),
    "truth": (Holder, lambda o: 1.0 if o else 2.0, _set_attribute),
    "order": (Holder, lambda o: 1.0 if o < 1.5 else 2.0, _set_attribute),
    "attribute_by_getattr": (Holder, lambda o: o.anything, _set_attribute),
    "bound_method": (Holder, lambda o: o.__call__(), _set_attribute),
    "partial_of_a_method": (
        Holder,
        lambda o: functools.partial(Holder.__call__, o)(),
        _set_attribute,
    ),
    "computed_name": (Setting, lambda o: getattr(o, _prefix()), _set_attribute),
    "computed_name_with_default": (Setting, lambda o: getattr(o, _prefix(), 3.0), _set_attribute),
    "dict_of_an_object": (Setting, lambda o: o.__dict__[_prefix()], _set_attribute),
    "vars": (Setting, lambda o: vars(o)[_prefix()], _set_attribute),
    "attrgetter": (Setting, lambda o: _get_factor(o), _set_attribute),
    "computed_attrgetter": (Setting, lambda o: operator.attrgetter(_prefix())(o), _set_attribute),
    "dataclass": (Setting, lambda o: o.factor, _set_attribute),
    "asdict": (Setting, lambda o: dataclasses.asdict(o)["factor"], _set_attribute),
    "astuple": (Setting, lambda o: dataclasses.astuple(o)[0], _set_attribute),
    "match": (Setting, _of_match, _set_attribute),
    "match_by_position": (Setting, _of_match_by_position, _set_attribute),
    "descriptor": (OfDescriptor, lambda o: o.factor, lambda o: vars(o).update(_factor=2.0)),
    "cached_property": (OfCachedProperty, lambda o: o.factor, lambda o: vars(o).update(factor=2.0)),
    "property_of_a_metaclass": (
        lambda: setattr(OfMetaclass, "hidden", 1.0),
        lambda _: OfMetaclass.factor,
        lambda _: setattr(OfMetaclass, "hidden", 2.0),
    ),
    "class_method": (
        lambda: setattr(OfMetaclass, "hidden", 1.0),
        lambda _: OfMetaclass.by_classmethod(),
        lambda _: setattr(OfMetaclass, "hidden", 2.0),
    ),
    "static_method": (
        lambda: setattr(OfMetaclass, "hidden", 1.0),
        lambda _: OfMetaclass.by_staticmethod(),
        lambda _: setattr(OfMetaclass, "hidden", 2.0),
    ),
    "deque": (lambda: collections.deque([1.0], 1), lambda o: o[0], lambda o: o.append(2.0)),
    "mean_of_a_deque": (
        lambda: collections.deque([1.0, 1.0], 2),
        lambda o: sum(o) / len(o),
        lambda o: o.append(2.0),
    ),
    "deque_of_arrays": (
        lambda: collections.deque([np.ones(3), np.ones(3)], 2),
        lambda o: np.stack(o).mean(0),
        lambda o: o.append(np.full(3, 2.0)),
    ),
    "user_dict": (lambda: collections.UserDict(factor=1.0), lambda o: o["factor"], _set_item),
    "chain_map": (
        lambda: collections.ChainMap({}, {"factor": 1.0}),
        lambda o: o["factor"],
        _set_item,
    ),
    "queue": (_queue, lambda o: o.queue[0], lambda o: (o.get(), o.put(2.0))),
    "context_variable": (
        lambda: contextvars.ContextVar("factor", default=1.0),
        lambda o: o.get(),
        lambda o: o.set(2.0),
    ),
    "optimizer": (
        lambda: mpchain.optimizers.SGD(1.0),
        lambda o: o.lr,
        lambda o: setattr(o, "lr", 2.0),
    ),
    "epoch_of_an_optimizer": (
        lambda: mpchain.optimizers.SGD(1.0),
        lambda o: o.epoch + 1.0,
        lambda o: o.new_epoch(),
    ),
    "thread_local": (_local, lambda o: o.factor, _set_attribute),
    "shared_value": (
        lambda: multiprocessing.Value("d", 1.0),
        lambda o: o.value,
        lambda o: setattr(o, "value", 2.0),
    ),
    "number_of_c": (
        lambda: ctypes.c_double(1.0),
        lambda o: o.value,
        lambda o: setattr(o, "value", 2.0),
    ),
    "array_of_python": (lambda: array.array("d", [1.0]), lambda o: o[0], _set_first),
    "bytearray": (lambda: bytearray([1]), lambda o: float(o[0]), lambda o: o.__setitem__(0, 2)),
    "environ": (
        _of_environment,
        lambda _: float(os.environ[_VARIABLE]),
        lambda _: os.environ.update({_VARIABLE: "2"}),
    ),
    "getenv": (
        _of_environment,
        lambda _: float(os.getenv(_VARIABLE)),
        lambda _: os.environ.update({_VARIABLE: "2"}),
    ),
    "import": (_module, _of_import, _set_attribute),
    "import_from": (_module, _of_import_from, _set_attribute),
    "importlib": (_module, _of_importlib, _set_attribute),
    "sys_modules": (_module, lambda o: sys.modules[o.__name__].factor, _set_attribute),
    "globals": (_of_global, lambda _: globals()["FACTOR"], lambda _: _of_global(2.0)),
    "item_of_a_dict": (lambda: {"factor": 1.0}, lambda o: next(map(o.get, ["factor"])), _set_item),
    "values_of_a_dict": (lambda: {"factor": 1.0}, lambda o: sum(o.values()), _set_item),
    "long_list": (lambda: [1.0] * 2000, lambda o: o[0], _set_first),
    "long_dict": (lambda: dict.fromkeys(range(2000), 1.0), lambda o: o[0], _set_first),
    "object_in_a_tuple": (
        lambda: (Setting(),),
        lambda o: o[0].factor,
        lambda o: _set_attribute(o[0]),
    ),
    "object_in_a_list": (
        lambda: [Setting()],
        lambda o: o[0].factor,
        lambda o: _set_attribute(o[0]),
    ),
    "object_as_a_key": (
        lambda: {Holder(): 1},
        lambda o: next(iter(o)).factor,
        lambda o: _set_attribute(next(iter(o))),
    ),
    "object_in_a_set": (
        lambda: {Holder()},
        lambda o: next(iter(o)).factor,
        lambda o: _set_attribute(next(iter(o))),
    ),
    "fraction": (
        lambda: [fractions.Fraction(1)],
        lambda o: float(o[0]),
        lambda o: o.__setitem__(0, fractions.Fraction(2)),
    ),
    "number_of_numpy": (lambda: [np.float32(1)], lambda o: o[0], lambda o: _set_first(o)),
    "array_of_objects": (lambda: np.array([1.0], dtype=object), lambda o: o[0], _set_first),
    "array_of_records": (
        lambda: np.array([(1.0,)], dtype=[("factor", "f8")]),
        lambda o: float(o["factor"][0]),
        lambda o: o["factor"].fill(2.0),
    ),
}


def _program(make, read, change):
    def make_step():
        holder, link, n_calls = make(), model_of(), 0
        step, state = trained(link, lambda x, t: F.softmax_cross_entropy(link(x) * read(holder), t))

        def changing():
            nonlocal n_calls
            n_calls += 1
            if n_calls == 6:
                change(holder)
            return state()

        return step, changing

    return make_step


PROGRAMS = {f"object_{name}": _program(*row) for name, row in _ROWS.items()}
