"""Small tools for tests."""

import contextlib
import importlib.metadata
import os
import pkgutil
import sys
import tempfile
import unittest
import unittest.mock
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mpchain import annexes, serializers
from mpchain.training import Trainer
from mpchain.training.triggers.interval import TriggerLike
from mpchain.typing import Array, DTypeLike


def _is_met(requirement):
    message = "with_requires and without_requires need packaging: pip install 'mpchain[test]'"
    requirement = annexes.library("packaging.requirements", message).Requirement(requirement)
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return requirement.specifier.contains(version, prereleases=True)


def with_requires(*requirements: str) -> Callable:
    """Decorator: skips a test unless all packages are installed, as in ``'numpy>=1.20'``.

    Example:
        >>> @testing.with_requires("numpy>=2", "no-such-package")
        ... def test_new_numpy(self): ...
    """
    met = all(map(_is_met, requirements))
    return unittest.skipUnless(met, f"requires: {','.join(requirements)}")


def without_requires(*requirements: str) -> Callable:
    """Decorator: skips a test if all packages are installed.

    Example:
        >>> @testing.without_requires("cupy")
        ... def test_without_cupy(self): ...
    """
    met = all(map(_is_met, requirements))
    return unittest.skipIf(met, f"requires the absence of: {','.join(requirements)}")


def patch(target: str, *args: Any, **kwargs: Any) -> Any:
    """Patches an object by a mock that calls the object; see :func:`unittest.mock.patch`.

    Args:
        target: full name of the object to patch.
        args, kwargs: further arguments of ``unittest.mock.patch``.

    Example:
        >>> with testing.patch("mpchain.functions.relu") as relu:
        ...     y = F.relu(np.array([-1.0, 2.0]))
        >>> relu.call_count, y.array
        (1, array([0., 2.]))
    """
    module, _, name = target.rpartition(".")
    original = getattr(pkgutil.resolve_name(module), name)
    return unittest.mock.patch(target, *args, wraps=original, **kwargs)


@contextlib.contextmanager
def assert_warns(expected: type[Warning]) -> Iterator[None]:
    """Context manager: raises AssertionError unless a warning of the class is given within.

    Example:
        >>> import warnings
        >>> with testing.assert_warns(UserWarning):
        ...     warnings.warn("careful", UserWarning)
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    if not any(issubclass(warning.category, expected) for warning in caught):
        raise AssertionError(f"{expected.__name__} not triggered")


def generate_matrix(
    shape: Sequence[int], dtype: DTypeLike = float, *, singular_values: Sequence[float] | Array
) -> Array:
    """Returns random matrices with the given singular values.

    Args:
        shape: (..., M, N).
        dtype: floating-point or complex dtype.
        singular_values: array that broadcasts to (..., min(M, N)), or a number for all.

    Example:
        >>> a = testing.generate_matrix((4, 2), singular_values=[3.0, 1.0])
        >>> np.linalg.svd(a, compute_uv=False).round(6)
        array([3., 1.])
    """
    shape, dtype = tuple(shape), np.dtype(dtype)
    if len(shape) < 2:
        raise ValueError(f"generate_matrix: shape {shape} has too few axes for matrices")
    if dtype.kind not in "fc":
        raise TypeError(f"generate_matrix: dtype must be floating-point or complex, not {dtype}")
    a = np.random.standard_normal(shape)
    if dtype.kind == "c":
        a = a + 1j * np.random.standard_normal(shape)
    u, _, vh = np.linalg.svd(a, full_matrices=False)
    values = np.broadcast_to(singular_values, u.shape[:-2] + u.shape[-1:])
    return ((u * values[..., None, :]) @ vh).astype(dtype)


def run_module(name: str, file: str) -> None:
    """Runs the tests of a file with pytest if the file is the main program.

    Args:
        name: the ``__name__`` of the file.
        file: the ``__file__`` of the file.

    Raises:
        RuntimeError: pytest is not installed.

    Example:
        >>> testing.run_module("test_mine", "test_mine.py")  # imported: does nothing
    """
    if name == "__main__":
        message = "mpchain.testing.run_module needs pytest: pip install 'mpchain[test]'"
        sys.exit(annexes.library("pytest", message).main([file, "-vvs", "-x"]))


def save_and_load(
    src: object, dst: object, filename: str, saver: Callable, loader: Callable
) -> None:
    """Saves ``src`` to a file in a temporary folder, and loads it into ``dst``.

    Args:
        src, dst: objects of the same structure.
        filename: name of the file.
        saver, loader: functions of (path, object).

    Example:
        >>> save, load = mpchain.serializers.save_npz, mpchain.serializers.load_npz
        >>> testing.save_and_load(L.Linear(2, 3), L.Linear(2, 3), "model.npz", save, load)
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, filename)
        saver(path, src)
        loader(path, dst)


def save_and_load_npz(src: object, dst: object) -> None:
    """Saves ``src`` to an NPZ file and loads it into ``dst``.

    Example:
        >>> source, target = L.Linear(2, 3), L.Linear(2, 3)
        >>> testing.save_and_load_npz(source, target)
        >>> np.array_equal(source.W.array, target.W.array)
        True
    """
    save_and_load(src, dst, "tmp.npz", serializers.save_npz, serializers.load_npz)


def save_and_load_hdf5(src: object, dst: object) -> None:
    """Saves ``src`` to an HDF5 file and loads it into ``dst``.

    Example:
        >>> testing.save_and_load_hdf5(L.Linear(2, 3), L.Linear(2, 3))  # doctest: +SKIP
    """
    save_and_load(src, dst, "tmp.h5", serializers.save_hdf5, serializers.load_hdf5)


def get_trainer_with_mock_updater(
    stop_trigger: TriggerLike = (10, "iteration"),
    iter_per_epoch: int = 10,
    extensions: Sequence | None = None,
) -> Trainer:
    """Returns a Trainer whose updater is a mock that counts iterations and epochs.

    Args:
        stop_trigger, extensions: arguments of the Trainer.
        iter_per_epoch: number of iterations in an epoch.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater((20, "iteration"), iter_per_epoch=5)
        >>> trainer.updater.update()
        >>> trainer.updater.iteration, trainer.updater.epoch_detail
        (1, 0.2)
    """
    updater = unittest.mock.MagicMock()
    updater.get_all_optimizers.return_value = {}
    updater.agree_on_signal.side_effect = lambda number: number
    updater.rank_times.return_value = None

    def count(iteration):
        updater.iteration = iteration
        updater.previous_epoch_detail = max(iteration - 1, 0) / iter_per_epoch
        updater.epoch_detail = iteration / iter_per_epoch
        updater.epoch = iteration // iter_per_epoch
        updater.is_new_epoch = iteration > 0 and iteration % iter_per_epoch == 0

    count(0)
    updater.update.side_effect = lambda: count(updater.iteration + 1)
    return Trainer(updater, stop_trigger, extensions=extensions)
