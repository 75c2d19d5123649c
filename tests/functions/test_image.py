"""Tests resizing, windows and sampling of images."""

import functools

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable
from mpchain.utils.type_check import InvalidType
from tests.functions.table import checks_of, row, uncovered
from tests.reference import torch

pytestmark = pytest.mark.slow

_GRID = np.random.RandomState(7).uniform(-1.4, 1.4, (2, 2, 3, 2))


def _interpolation(shape, mode, **options):
    """Returns a case of interpolate, whose arguments are PyTorch's."""
    resize = torch.nn.functional.interpolate
    # The check of one order more shows that the function is linear.
    return row(
        f"interpolate {mode} {options}",
        functools.partial(F.interpolate, mode=mode, **options),
        functools.partial(resize, mode=mode, **options),
        shape,
        orders=2,
    )


def _torch_sampler(x, grid):
    return torch.nn.functional.grid_sample(x, grid.permute(0, 2, 3, 1), align_corners=True)


def _send(array, x):
    return x.device.send(array.astype(x.dtype))


TABLE = [
    row(
        "im2col",
        lambda x: F.im2col(x, (2, 3), (2, 1), (1, 0), dilate=(1, 2)),
        lambda x: torch.nn.functional.unfold(
            x, (2, 3), dilation=(1, 2), padding=(1, 0), stride=(2, 1)
        ).reshape(2, 18, 3, 2),
        (2, 3, 4, 6),
    ),
    row(
        "im2col cover_all",
        lambda x: F.im2col(x, 2, 3, cover_all=True),
        lambda x: torch.nn.functional.unfold(
            torch.nn.functional.pad(x, (0, 2, 0, 1)), 2, stride=3
        ).reshape(1, 8, 3, 2),
        (1, 2, 7, 3),
    ),
    row(
        "resize_images",
        lambda x: F.resize_images(x, (4, 7)),
        lambda x: torch.nn.functional.interpolate(x, (4, 7), mode="bilinear", align_corners=True),
        (2, 1, 3, 5),
    ),
    row(
        "resize_images cells",
        lambda x: F.resize_images(x, (5, 2), align_corners=False),
        lambda x: torch.nn.functional.interpolate(x, (5, 2), mode="bilinear"),
        (1, 2, 3, 5),
    ),
    row(
        "resize_images nearest",
        lambda x: F.resize_images(x, (5, 10), mode="nearest"),
        lambda x: torch.nn.functional.interpolate(x, (5, 10), mode="nearest"),
        (2, 1, 3, 5),
    ),
    _interpolation((2, 2, 3), "nearest", size=7),
    _interpolation((1, 2, 3, 4), "nearest", scale_factor=2),
    _interpolation((1, 2, 5, 4), "nearest", scale_factor=(0.7, 1.6)),
    _interpolation((1, 1, 2, 3, 2), "nearest", size=(3, 2, 4)),
    _interpolation((1, 2, 5, 4), "nearest-exact", size=(3, 7)),
    _interpolation((1, 2, 5, 4), "nearest-exact", scale_factor=1.7),
    _interpolation((1, 2, 5, 4), "area", size=(3, 7)),
    _interpolation((2, 2, 4), "linear", size=7),
    _interpolation((2, 2, 4), "linear", size=1, align_corners=True),
    _interpolation((1, 2, 3, 4), "bilinear", scale_factor=(1.7, 0.6)),
    _interpolation((1, 2, 3, 4), "bilinear", scale_factor=1.7, align_corners=True),
    _interpolation((1, 1, 2, 3, 2), "trilinear", size=(3, 2, 4)),
    _interpolation((1, 2, 3, 4), "bicubic", size=(5, 3)),
    _interpolation((1, 2, 3, 4), "bicubic", size=(5, 3), align_corners=True),
    _interpolation((1, 1, 3, 4), "bicubic", scale_factor=2.5),
    row(
        "spatial_transformer_grid",
        lambda theta: F.spatial_transformer_grid(theta, (3, 4)),
        lambda theta: torch.nn.functional.affine_grid(
            theta, (2, 1, 3, 4), align_corners=True
        ).permute(0, 3, 1, 2),
        (2, 2, 3),
    ),
    row(
        "spatial_transformer_sampler",
        F.spatial_transformer_sampler,
        _torch_sampler,
        (2, 2, 3, 4),
        (2, 2, 2, 3),
        low=-1.3,
        high=1.3,
        # A position in half precision has an error of up to 1/1000 of the image.
        tolerance={np.float16: 2e-2},
    ),
    row(
        "spatial_transformer_sampler of a fixed grid",
        lambda x: F.spatial_transformer_sampler(x, _send(_GRID, x)),
        lambda x: _torch_sampler(x, torch.as_tensor(_GRID)),
        (2, 3, 4, 5),
        tolerance={np.float16: 2e-2, np.float32: 1e-5},
    ),
]
test_value_and_gradient, test_derivatives, test_non_contiguous = checks_of(TABLE)


def test_every_declaration_is_in_the_table():
    assert uncovered(TABLE, "image", "resampling") <= {"fold_windows"}


def test_sampling_at_the_identity_grid_gives_the_image(device):
    x = np.random.randn(2, 3, 4, 5).astype(np.float32)
    theta = np.tile(np.eye(2, 3, dtype=np.float32), (2, 1, 1))
    x, theta = mpchain.get_device(device).send((x, theta))
    y = F.spatial_transformer_sampler(x, F.spatial_transformer_grid(theta, (4, 5)))
    mpchain.gradient_check.assert_allclose(y.array, x, 1e-5, 1e-5)


def test_far_from_the_image_all_is_zero():
    x = Variable(np.random.randn(1, 2, 3, 3).astype(np.float32))
    grid = Variable(np.full((1, 2, 2, 2), 1e4, np.float32))
    grid.array[:, 0, 0] = -1e30
    y = F.spatial_transformer_sampler(x, grid)
    y.grad = np.ones_like(y.array)
    y.backward()
    assert not y.array.any() and not x.grad.any() and not grid.grad.any()


def test_a_position_that_is_not_a_number_shows():
    grid = np.zeros((1, 2, 1, 2))
    grid[0, 0, 0, 0] = np.nan
    y = F.spatial_transformer_sampler(np.ones((1, 1, 3, 3)), grid)
    np.testing.assert_array_equal(y.array, [[[[np.nan, 1]]]])


def test_half_precision_positions_are_computed_in_single_precision():
    x = (np.arange(2001) % 2).astype(np.float16).reshape(1, 1, 1, 2001)
    grid = np.zeros((1, 2, 1, 1), np.float16)
    grid[0, 0] = 0.2
    position = (float(grid[0, 0, 0, 0]) + 1) * 1000  # 1199.95, which half precision rounds to 1200
    y = F.spatial_transformer_sampler(x, grid).array.item()
    assert y == pytest.approx(1200 - position, abs=1e-4)


def test_empty_batches():
    images = np.zeros((0, 2, 3, 4), np.float32)
    assert F.im2col(images, 2).shape == (0, 8, 2, 3)
    assert F.resize_images(images, (5, 6)).shape == (0, 2, 5, 6)
    assert F.interpolate(images, 2, mode="bicubic").shape == (0, 2, 2, 2)
    grid = F.spatial_transformer_grid(np.zeros((0, 2, 3), np.float32), (5, 6))
    assert grid.shape == (0, 2, 5, 6)
    assert F.spatial_transformer_sampler(images, grid).shape == (0, 2, 5, 6)


def test_half_precision_sums_in_single_precision():
    x = np.full((1, 1, 1, 3000), 100, np.float16)
    assert F.interpolate(x, 1, mode="area").array.item() == 100


# Each wrong input has the function, its arguments, and a part of the message.


def f(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


IMAGE = f(1, 2, 3, 4)
WRONG = [
    ("im2col", (f(2, 3), 2), "with 4 axes", "(2, 3)"),
    ("im2col", (IMAGE.astype(int), 2), "floating", "int64"),
    ("im2col", (IMAGE, 4), "output size (0, 1) must be positive", "(1, 2, 3, 4)"),
    ("im2col", (IMAGE, (2, 2, 2)), "ksize must be one integer or 2", "(2, 2, 2)"),
    ("im2col", (IMAGE, 2, 0), "stride must be", "stride: 0"),
    ("resize_images", (f(2, 3), (4, 4)), "with 4 axes", "(2, 3)"),
    ("resize_images", (IMAGE, (4, 0)), "output_shape must be", "(4, 0)"),
    ("resize_images", (IMAGE, (4, 4), {"mode": "cubic"}), "mode must be", "'cubic'"),
    ("resize_images", (f(1, 2, 0, 4), (4, 4)), "axes of x must not be empty", "(1, 2, 0, 4)"),
    ("interpolate", (IMAGE,), "give either size or scale_factor", "size=None"),
    ("interpolate", (IMAGE, 3, 2), "give either size or scale_factor", "size=3"),
    ("interpolate", (IMAGE, 3, None, "cubic"), "mode must be one of nearest", "'cubic'"),
    ("interpolate", (f(2, 3), 3), "x must be floating, (N, C, ...)", "(2, 3)"),
    ("interpolate", (IMAGE, 3, None, "linear"), "x must have 3 axes", "(1, 2, 3, 4)"),
    ("interpolate", (IMAGE, (3, 3, 3)), "size must be one integer or 2", "(3, 3, 3)"),
    ("interpolate", (IMAGE, None, -1.0), "scale_factor must be", "scale_factor: -1.0"),
    ("interpolate", (IMAGE, None, (1, 2, 3)), "or one for each spatial axis (2)", "(1, 2, 3)"),
    ("interpolate", (IMAGE, None, 0.3), "output size (0, 1) must be positive", "(1, 2, 3, 4)"),
    ("spatial_transformer_grid", (f(2, 3), (3, 3)), "shape (N, 2, 3)", "(2, 3)"),
    ("spatial_transformer_grid", (f(2, 2, 3, dtype=int), (3, 3)), "floating point", "int64"),
    ("spatial_transformer_grid", (f(2, 2, 3), (3, 3, 3)), "output_shape must be", "(3, 3, 3)"),
    ("spatial_transformer_sampler", (f(2, 3), f(1, 2, 3, 3)), "x must be floating", "(2, 3)"),
    ("spatial_transformer_sampler", (IMAGE, f(2, 2, 3, 3)), "shape (N, 2, H, W)", "(2, 2, 3, 3)"),
    (
        "spatial_transformer_sampler",
        (IMAGE, f(1, 2, 3, 3, dtype="f8")),
        "of the dtype of x",
        "float64",
    ),
]


@pytest.mark.parametrize("name, arguments, shown", [(n, a, s) for n, a, *s in WRONG])
def test_wrong_input(name, arguments, shown):
    options = {}
    if isinstance(arguments[-1], dict):
        *arguments, options = arguments
    with pytest.raises((InvalidType, ValueError)) as caught:
        getattr(F, name)(*arguments, **options)
    message = str(caught.value)
    assert message.startswith(f"{name}: ")
    for text in shown:
        assert text in message, message
