"""Tests small utilities: scalars and shapes, keyword arguments, warnings, and final methods."""

import os
import warnings

import numpy as np
import pytest

import mpchain
from mpchain import utils
from mpchain.utils import argument


def test_force_array_and_force_type():
    for value in (np.float32(2), 2):
        array = utils.force_array(value, np.float16)
        assert isinstance(array, np.ndarray) and array.shape == () and array.dtype == np.float16
    x = np.ones(2)
    assert utils.force_array(x) is x
    assert utils.force_type(x.dtype, x) is x
    assert utils.force_type(np.dtype("f4"), x).dtype == np.float32
    assert type(utils.force_type(np.dtype("f4"), 3)) is np.float32


@pytest.mark.parametrize("shape", [(), (4,), (3, 1), (1, 3, 4), (2, 3, 4)])
def test_sum_to_is_the_adjoint_of_broadcasting(shape):
    x, y = np.random.randn(2, 3, 4), np.random.randn(*shape)
    total = utils.sum_to(x, shape)
    assert total.shape == shape and utils.size_of_shape(shape) == total.size
    np.testing.assert_allclose((total * y).sum(), (x * np.broadcast_to(y, x.shape)).sum())


@pytest.mark.parametrize("shape", [(3,), (2, 1, 3, 4)])
def test_sum_to_an_impossible_shape(shape):
    with pytest.raises(ValueError, match=r"^sum_to: shape .* does not broadcast"):
        utils.sum_to(np.ones((2, 3, 4)), shape)


def test_keyword_arguments():
    assert argument.parse_kwargs({"a": 1}, ("a", 2), ("b", 3)) == (1, 3)
    with pytest.raises(ValueError, match=r"^gone$"):
        argument.parse_kwargs({"c": 1}, ("a", 2), c="gone")
    with pytest.raises(TypeError, match=r"^test_keyword_arguments\(\) got .* 'c', 'd'$"):
        argument.parse_kwargs({"d": 1, "c": 1}, ("a", 2))
    argument.check_unexpected_kwargs({"c": 1}, d="gone")
    argument.assert_kwargs_empty({})
    with pytest.raises(TypeError, match=r"^test_keyword_arguments\(\) got .* 'q'$"):
        argument.assert_kwargs_empty({"q": 1})


def test_notices():
    with pytest.warns(FutureWarning, match=r"^api is experimental"):
        utils.experimental("api")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with mpchain.using_config("disable_experimental_feature_warning", True):
            utils.experimental("api")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mpchain, "disable_experimental_feature_warning", True)
            utils.experimental("api")
        utils.nondeterministic("f")
    with mpchain.using_config("warn_nondeterministic", True):
        with pytest.warns(UserWarning, match=r"Source: f$"):
            utils.nondeterministic("f")
    with pytest.warns(DeprecationWarning, match="DebugMode"), mpchain.DebugMode(True):
        assert mpchain.is_debug()
    assert not mpchain.is_debug()


def test_categories_of_warnings():
    with pytest.warns(mpchain.warnings.PerformanceWarning, match="slow"):
        warnings.warn("slow", mpchain.warnings.PerformanceWarning)


def test_tempdir_is_removed_even_after_an_error():
    with pytest.raises(KeyError), utils.tempdir(prefix="some") as folder:
        assert os.path.isdir(folder) and os.path.basename(folder).startswith("some")
        raise KeyError
    assert not os.path.exists(folder)


class _Base(utils.enable_final()):
    @utils.final
    def refused(self):
        pass

    @utils.final(action=UserWarning)
    def warned(self):
        pass


def test_final_methods():
    with pytest.raises(TypeError, match=r"^Child must not override _Base.refused"):
        type(_Base)("Child", (_Base,), {"refused": None})
    with pytest.warns(UserWarning, match=r"^Child must not override _Base.warned"):
        type(_Base)("Child", (_Base,), {"warned": None})

    class Other(_Base):
        def free(self):
            return 1

    assert Other().free() == 1


def test_cudnn_is_wanted_but_not_there():
    assert not mpchain.should_use_cudnn(">=auto")
    assert not mpchain.should_use_cudnn_tensor_core(np.float16)
    with pytest.raises(ValueError, match=r"^should_use_cudnn: level must be one of .*'bad'"):
        mpchain.should_use_cudnn("bad")


def test_sparse_matrices_are_found_here():
    assert utils.CooMatrix is mpchain.utils.sparse.CooMatrix
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        utils.nothing
