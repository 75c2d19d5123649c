"""Runs one test class with many parameters.

A decorator that multiplies a class puts the generated classes in the class's module, where pytest
and unittest find them, and returns a :class:`Bundle` of them, so that decorators can be stacked.
"""

import inspect
import itertools
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any


class Bundle:
    """The test classes that were generated from one class.

    Attributes:
        classes: list of these classes.

    Example:
        >>> [cls.__name__ for cls in Bundle([unittest.TestCase]).classes]
        ['TestCase']
    """

    def __init__(self, classes: list[type]):
        self.classes = classes


def classes_of(decorated: type | Bundle) -> list[type]:
    """Returns the classes that a class decorator gets: one class, or those of a :class:`Bundle`.

    Example:
        >>> classes_of(unittest.TestCase)
        [<class 'unittest.case.TestCase'>]
    """
    if isinstance(decorated, Bundle):
        return decorated.classes
    if inspect.isclass(decorated):
        return [decorated]
    raise TypeError(f"a test class is needed, not {type(decorated).__name__} {decorated!r}")


def derive(decorated: type | Bundle, variants: Callable) -> Bundle:
    """Replaces test classes with subclasses of them.

    Args:
        decorated: a class, or a Bundle of classes.
        variants: function of a class that yields a pair for each subclass: the suffix of its name,
            and a dict of its attributes.

    Returns:
        Bundle of the subclasses.

    Example:
        >>> derive(unittest.TestCase, lambda base: [])  # doctest: +SKIP
    """
    generated = []
    for base in classes_of(decorated):
        module = sys.modules[base.__module__]
        vars(module).pop(base.__name__, None)
        for suffix, attributes in variants(base):
            name = base.__name__ + suffix
            attributes = {"__module__": base.__module__, "__qualname__": name, **attributes}
            generated.append(type(base)(name, (base,), attributes))
            setattr(module, name, generated[-1])
    return Bundle(generated)


def parameterize(*params: dict[str, Any]) -> Callable[[Any], Bundle]:
    """Class decorator: runs the tests with each of several sets of parameters.

    The classes are named ``<Base>_param_<i>_{name=value, ...}``.

    Args:
        params: dicts; their items become attributes of the test object.

    Example:
        >>> @testing.parameterize({"shape": (2, 3)}, {"shape": ()})
        ... class TestReLU(unittest.TestCase):
        ...     def test_forward(self):
        ...         x = np.zeros(self.shape)
    """

    def variants(base):
        for i, param in enumerate(params):
            attributes = {name: _as_attribute(value) for name, value in param.items()}
            shown = ", ".join(f"{name}={_short(value)}" for name, value in sorted(param.items()))
            yield f"_param_{i}_{{{shown}}}", attributes

    return lambda cls: derive(cls, variants)


def _as_attribute(value):
    """Wraps functions and other descriptors, so that they do not become methods."""
    return staticmethod(value) if callable(value) and hasattr(value, "__get__") else value


def _short(value):
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)):
        return value.__name__
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:48]}...{text[-49:]}"


def from_pytest_parameterize(names: str | Sequence[str], values: Sequence) -> list[dict[str, Any]]:
    """Converts the arguments of ``pytest.mark.parametrize`` to those of :func:`parameterize`.

    Args:
        names: string of names, separated by commas, or a sequence of names.
        values: list of values; if there are several names, list of tuples of values.

    Returns:
        list of dicts.

    Example:
        >>> from_pytest_parameterize("a, b", [(1, 2), (3, 4)])
        [{'a': 1, 'b': 2}, {'a': 3, 'b': 4}]
    """
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",") if name.strip()]
        values = [(value,) for value in values] if len(names) == 1 else values
    for value in values:
        if len(value) != len(names):
            raise ValueError(
                f"from_pytest_parameterize: there must be a value for each of {names}: {value!r}"
            )
    return [dict(zip(names, value)) for value in values]


def parameterize_pytest(names: str | Sequence[str], values: Sequence) -> Callable[[Any], Bundle]:
    """Class decorator: :func:`parameterize` with the arguments of ``pytest.mark.parametrize``.

    Example:
        >>> @testing.parameterize_pytest("shape", [(2, 3), ()])
        ... class TestReLU(unittest.TestCase):
        ...     def test_forward(self):
        ...         assert F.relu(np.zeros(self.shape)).shape == self.shape
    """
    return parameterize(*from_pytest_parameterize(names, values))


def product(parameter: dict[str, Any] | list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Returns all combinations of parameters, as a list of dicts.

    Args:
        parameter: dict of lists of values, or list of lists of dicts.

    Example:
        >>> testing.product({"n": [1, 2], "x": ["a"]})
        [{'n': 1, 'x': 'a'}, {'n': 2, 'x': 'a'}]
    """
    if isinstance(parameter, dict):
        for name, values in parameter.items():
            if not isinstance(values, (list, tuple)):
                raise TypeError(f"product: {name} must be a list of values, not {values!r}")
        lists = [[{name: value} for value in parameter[name]] for name in sorted(parameter)]
        return product_dict(*lists)
    if isinstance(parameter, list) and all(isinstance(d, dict) for ds in parameter for d in ds):
        return product_dict(*parameter)
    raise TypeError("product: parameter must be a dict of lists or a list of lists of dicts")


def product_dict(*parameters: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns all combinations of dicts, one from each list, merged.

    Example:
        >>> product_dict([{"a": 1}, {"a": 2}], [{"b": 3}])
        [{'a': 1, 'b': 3}, {'a': 2, 'b': 3}]
    """
    merged = []
    for dicts in itertools.product(*parameters):
        merged.append({name: value for d in dicts for name, value in d.items()})
    return merged
