import pickle

import numpy as np
import pytest

from mpchain.datasets import transforms as T

pytest.importorskip("PIL")


@pytest.fixture
def image():
    return np.random.RandomState(0).uniform(0, 255, (3, 12, 17)).astype(np.float32)


def draws(transform, image, n=200):
    return [transform(image, np.random.default_rng(seed)) for seed in range(n)]


@pytest.mark.slow
@pytest.mark.parametrize("size", [(5, 9), (24, 20), (12, 5)])
def test_resize_is_that_of_torch(image, size):
    torch = pytest.importorskip("torch")
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(image)[None], size, mode="bilinear", antialias=True
    )
    # Both libraries compute weights in float32, or round weights to float32.
    np.testing.assert_allclose(T.Resize(size)(image), expected[0], atol=1e-3)


def test_resize_of_the_shorter_side(image):
    assert T.Resize(6)(image).shape == (3, 6, 8)
    assert T.Resize(6)(image.transpose(0, 2, 1)).shape == (3, 8, 6)
    assert T.Resize(12)(image.astype(np.uint8)).dtype == np.float32


def test_crops_are_parts_of_the_picture(image):
    np.testing.assert_array_equal(T.CenterCrop((4, 5))(image), image[:, 4:8, 6:11])
    parts = {image[:, i : i + 4, j : j + 5].tobytes() for i in range(9) for j in range(13)}
    found = {crop.tobytes() for crop in draws(T.RandomCrop((4, 5)), image, 1000)}
    # Each of 117 positions is missing with probability (1 - 1 / 117) ** 1000, below 1 in 5000.
    assert found <= parts and len(found) == len(parts)
    padded = draws(T.RandomCrop((14, 19), pad=1), image, 1)[0]
    np.testing.assert_array_equal(padded[:, 1:-1, 1:-1], image)
    assert padded[:, 0].sum() == 0


def test_resized_crops_have_the_allowed_areas(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(T, "resized", lambda part, size: part)
        crop = T.RandomResizedCrop(4, scale=(0.2, 0.5), ratio=(0.5, 2.0))
        shapes = [part.shape[1:] for part in draws(crop, np.zeros((3, 64, 64)))]
    areas = [height * width / 64**2 for height, width in shapes]
    ratios = [width / height for height, width in shapes]
    # Sides are rounded by at most half a pixel, and have at least 20 pixels.
    assert 0.19 < min(areas) < 0.25 and 0.45 < max(areas) < 0.53
    assert 0.47 < min(ratios) < 0.6 and 1.7 < max(ratios) < 2.15
    thin = T.RandomResizedCrop(2, scale=(1.0, 1.0))(np.ones((1, 2, 40)), np.random.default_rng(0))
    assert thin.shape == (1, 2, 2)


def test_flips(image):
    flips = draws(T.RandomFlip(0.25), image, 400)
    n = sum(np.array_equal(flip, image[:, :, ::-1]) for flip in flips)
    assert sum(np.array_equal(flip, image) for flip in flips) == 400 - n
    assert abs(n - 100) < 4 * np.sqrt(400 * 0.25 * 0.75)
    upside_down = T.RandomFlip(1.0, vertical=True)(image, np.random.default_rng(0))
    np.testing.assert_array_equal(upside_down, image[:, ::-1])


def test_erasing_leaves_the_rest(image):
    for erased in draws(T.RandomErasing(1.0, (0.1, 0.2), value=-1.0), image, 50):
        gone = (erased == -1).all(0)
        assert 0.05 < gone.mean() < 0.3
        np.testing.assert_array_equal(erased[:, ~gone], image[:, ~gone])
    assert T.RandomErasing(0.0)(image, np.random.default_rng(0)) is image


def test_jitter(image):
    same = T.ColorJitter()(image, np.random.default_rng(0))
    np.testing.assert_array_equal(same, image)
    for brighter in draws(T.ColorJitter(brightness=0.3, white=1e9), image, 20):
        factors = brighter / image
        assert np.ptp(factors) < 1e-4 and 0.7 <= factors.mean() <= 1.3
    image = 100 + image / 10  # so all values stay above 0
    gray = T.ColorJitter(saturation=1.0, white=1e9)
    weights = np.array([0.299, 0.587, 0.114], np.float32)
    for changed in draws(gray, image, 20):
        np.testing.assert_allclose(
            np.tensordot(weights, changed, 1), np.tensordot(weights, image, 1), rtol=1e-4
        )
    for changed in draws(T.ColorJitter(contrast=0.5, white=1e9), image, 20):
        mean = np.tensordot(weights, image, 1).mean()
        np.testing.assert_allclose(np.tensordot(weights, changed, 1).mean(), mean, rtol=1e-4)
    assert draws(T.ColorJitter(1.0, 1.0, 1.0), image, 20)[0].max() <= 255


def test_normalize(image):
    mean, std = [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]
    expected = np.stack([(image[i] - mean[i]) / std[i] for i in range(3)])
    np.testing.assert_allclose(T.Normalize(mean, std)(image), expected, rtol=1e-6)
    assert T.Normalize(0, 2)(np.ones((1, 1, 1), np.uint8)).tolist() == [[[0.5]]]
    with pytest.raises(ValueError, match="mean and std must have 1 or 3 numbers"):
        T.Normalize(mean[:2], 1.0)(image)


def test_composed_transforms_can_be_sent_to_workers(image):
    composed = T.Compose(
        T.RandomCrop(8, pad=2), T.RandomFlip(), T.ColorJitter(0.2), T.Normalize(0, 1)
    )
    copy = pickle.loads(pickle.dumps(composed))
    first, second = (t(image, np.random.default_rng(5)) for t in (composed, copy))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (T.CenterCrop(13), r"CenterCrop: size 13 x 13 must not exceed the image, 12 x 17"),
        (T.RandomCrop((3, 18)), r"RandomCrop: size 3 x 18 must not exceed"),
    ],
)
def test_crops_that_do_not_fit(image, transform, message):
    with pytest.raises(ValueError, match=message):
        transform(image, np.random.default_rng(0))


@pytest.mark.parametrize(
    "transform", [T.RandomCrop(2), T.RandomFlip(), T.RandomErasing(), T.ColorJitter()]
)
def test_wrong_arguments(image, transform):
    with pytest.raises(TypeError, match=f"{type(transform).__name__}: random must be a numpy"):
        transform(image)
    with pytest.raises(ValueError, match=r"must be an array \(channels, height, width\)"):
        transform(image[0], np.random.default_rng(0))
