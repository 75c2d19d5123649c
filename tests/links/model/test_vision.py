"""Tests image networks: structure as in Chainer, layers by name, image preparation, parameters from
files."""

import hashlib
import os

import numpy as np
import pytest
from PIL import Image

import mpchain
from mpchain import links as L
from mpchain.links.model.vision import googlenet, pretrained, resnet, vgg
from mpchain.links.model.vision.pretrained import PublishedModel
from mpchain.links.model.vision.vision_model import VisionModel
from mpchain.serializers import DictionarySerializer, load_npz, save_npz
from mpchain.serializers.safetensors import save_safetensors
from mpchain.utils.imgproc import oversample
from tests.links.caffe_writer import blob, inside, integer, layer

pytestmark = pytest.mark.slow

PICTURE = np.random.RandomState(0).randint(0, 256, (40, 50, 3)).astype(np.uint8)

# For each network, the number of arrays that Chainer 7.8.1 saves, and a checksum of their names and
# shapes.
SAVED_BY_CHAINER = {
    "VGG16Layers": (32, "b9d8f5d90c1e13fc"),
    "VGG19Layers": (38, "88958b9ea8e351e5"),
    "GoogLeNet": (128, "b7bf8922c6891fff"),
    "ResNet50Layers": (321, "6d573a84dbc53773"),
    "ResNet101Layers": (627, "bf9d65fe97d7e62a"),
    "ResNet152Layers": (933, "58fd9f12c04ce3b4"),
}


@pytest.fixture
def without_values(monkeypatch):
    """Makes parameters of zeros that need neither time nor memory."""
    monkeypatch.setattr(
        "mpchain.initializers.initializer.Initializer.__call__",
        lambda self, array: None,
        raising=False,
    )
    for initializer in ("Constant", "HeNormal", "LeCunNormal", "LeCunUniform", "Normal"):
        monkeypatch.setattr(
            f"mpchain.initializers.{initializer}.__call__", lambda self, array: None
        )
    monkeypatch.setattr("numpy.empty", np.zeros)


@pytest.mark.parametrize("name", SAVED_BY_CHAINER)
def test_names_and_shapes_are_chainers(name, without_values):
    serializer = DictionarySerializer()
    serializer.save(getattr(L, name)(pretrained_model=None))
    lines = sorted(f"{key} {np.shape(value)}" for key, value in serializer.target.items())
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    assert (len(lines), digest) == SAVED_BY_CHAINER[name]


# This network is small enough to run.


class Small(VisionModel):
    mean = (10, 20, 30)
    default_extracted = "features"
    branches = {"side": "conv"}

    def __init__(self, pretrained_model=None):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 4, 3, stride=8)
            self.bn = L.BatchNormalization(4)
            self.fc = L.Linear(4, 5)
            self.aside = L.Linear(None, 2)
        self.calls = []
        self._load(pretrained_model)

    @property
    def functions(self):
        def note(name):
            return lambda h: self.calls.append(name) or h

        F = mpchain.functions
        return {
            "conv": [note("conv"), self.conv, self.bn],
            "features": [note("features"), lambda h: F.mean(h, axis=(2, 3))],
            "scores": [note("scores"), self.fc],
            "prob": [note("prob"), F.softmax],
            "side": [note("side"), self.aside],
        }

    def transfer_from_caffe(self, caffe):
        pretrained.copy_layer(self.conv, caffe, "conv/3x3")
        pretrained.copy_normalization(self.bn, caffe, "bn", "scale")
        pretrained.copy_layer(self.fc, caffe, "fc")


X = np.random.RandomState(1).randn(2, 3, 20, 20).astype(np.float32)


def test_only_the_layers_that_are_needed_are_computed():
    model = Small()
    for layers, outputs, computed in (
        (None, ["prob"], ["conv", "features", "scores", "prob"]),
        (["scores", "conv"], ["conv", "scores"], ["conv", "features", "scores"]),
        (["side"], ["side"], ["conv", "side"]),
        (["side", "features"], ["features", "side"], ["conv", "features", "side"]),
        ([], [], []),
    ):
        model.calls.clear()
        assert list(model(X, layers=layers)) == outputs and model.calls == computed
    assert model.available_layers == ["conv", "features", "scores", "prob", "side"]


def test_unknown_layers():
    message = (
        r"Small: there is no layer 'a', 'b'; the layers are conv, features, scores, prob, side"
    )
    with pytest.raises(ValueError, match=message):
        Small()(X, layers=["conv", "b", "a"])


def test_extract_and_predict():
    model = Small()
    with mpchain.using_config("train", False):
        features = model.extract([PICTURE, PICTURE[:30]], size=(24, 16))
        assert list(features) == ["features"] and features["features"].shape == (2, 4)
        (scores,) = model.extract([PICTURE], layers=["scores"], size=None).values()
        expected = model(_prepared(PICTURE)[None], layers=["scores"])["scores"]
        np.testing.assert_array_equal(scores.array, expected.array)
    average = model.bn.avg_mean.copy()
    y = model.predict([PICTURE, PICTURE[::-1]])
    assert y.shape == (2, 5) and y.creator is None
    np.testing.assert_array_equal(model.bn.avg_mean, average)
    large = np.stack([_prepared(p, (256, 256)) for p in (PICTURE, PICTURE[::-1])])
    with mpchain.using_config("train", False):
        crops = model(oversample(large, (224, 224)))["prob"].array
        center = model(large[:, :, 16:240, 16:240])["prob"].array
    np.testing.assert_allclose(y.array, crops.reshape(2, 10, 5).mean(1), 1e-5)
    one = model.predict([PICTURE, PICTURE[::-1]], oversample=False)
    np.testing.assert_allclose(one.array, center, 1e-5)


def _prepared(picture, size=None):
    image = Image.fromarray(picture)
    pixels = np.asarray(image.resize(size) if size else image, np.float32)
    return (pixels[:, :, ::-1] - np.float32([10, 20, 30])).transpose(2, 0, 1)


# Preparing pictures.

MEANS = {
    vgg: [103.939, 116.779, 123.68],
    googlenet: [104, 117, 123],
    resnet: [103.063, 115.903, 123.152],
}


@pytest.mark.parametrize("module", MEANS, ids=lambda module: module.__name__)
def test_prepare(module):
    mean = np.float32(MEANS[module])[:, None, None]
    expected = PICTURE[:, :, ::-1].transpose(2, 0, 1) - mean
    grey = np.broadcast_to(PICTURE[:, :, 0], (3, 40, 50)) - mean
    alpha = np.concatenate([PICTURE, PICTURE[:, :, :1]], axis=2)
    for image, right in (
        (PICTURE, expected),
        (Image.fromarray(PICTURE), expected),
        (Image.fromarray(alpha), expected),
        (alpha, expected),
        (PICTURE.transpose(2, 0, 1), expected),
        (PICTURE.astype(np.float64), expected),
        (PICTURE[:, :, 0], grey),
        (PICTURE[:, :, :1], grey),
        (PICTURE[None, :, :, 0], grey),
    ):
        prepared = module.prepare(image, size=None)
        assert prepared.dtype == np.float32
        np.testing.assert_array_equal(prepared, right)
    prepared = module.prepare(PICTURE)
    resized = np.asarray(Image.fromarray(PICTURE).resize((224, 224)))
    np.testing.assert_array_equal(prepared, resized[:, :, ::-1].transpose(2, 0, 1) - mean)
    assert module.prepare(PICTURE, (30, 20)).shape == (3, 20, 30)
    with mpchain.using_config("dtype", mpchain.mixed16):
        assert module.prepare(PICTURE, None).dtype == np.float16


@pytest.mark.parametrize("image", ["a text", np.zeros((4, 5, 2)), np.zeros(5), None])
def test_what_is_no_picture(image):
    with pytest.raises(TypeError, match="prepare: image must"):
        vgg.prepare(image)


def test_resizing_without_pillow(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(ImportError, match="resizing an image needs pillow: pip install pillow"):
        vgg.prepare(PICTURE)
    assert vgg.prepare(PICTURE, size=None).shape == (3, 40, 50)


# Parameters from files.


def _same(model, other):
    for (path, param), (_, right) in zip(model.namedparams(False), other.namedparams(False)):
        np.testing.assert_array_equal(param.array, right.array, path)


@pytest.mark.parametrize("save, name", [(save_npz, "a.npz"), (save_safetensors, "a.safetensors")])
def test_parameters_from_a_file(tmp_path, save, name):
    model = Small()
    model(X, layers=["side"])
    save(tmp_path / name, model)
    _same(Small(tmp_path / name), model)


def _caffemodel(path, **replaced):
    random = np.random.RandomState(2)
    arrays = {
        "W": random.randn(4, 3, 3, 3),
        "b": random.randn(4),
        "mean": random.randn(4),
        "var": random.rand(4),
        "gamma": random.randn(4),
        "beta": random.randn(4),
        "fc": random.randn(5, 4),
    } | replaced
    blobs = {name: blob(7, array) for name, array in arrays.items() if array is not None}
    with_bias = integer(2, "b" in blobs)
    path.write_bytes(
        b"".join(
            [
                layer(
                    "conv/3x3",
                    "Convolution",
                    ["x"],
                    ["h"],
                    inside(106, with_bias),
                    blobs["W"],
                    blobs.get("b", b""),
                ),
                layer("bn", "BatchNorm", ["h"], ["h"], blobs["mean"], blobs["var"], blob(7, [1.0])),
                layer(
                    "scale",
                    "Scale",
                    ["h"],
                    ["h"],
                    inside(142, integer(4, 1)),
                    blobs["gamma"],
                    blobs["beta"],
                ),
                layer("fc", "InnerProduct", ["h"], ["y"], inside(117, integer(2, 0)), blobs["fc"]),
            ]
        )
    )
    return arrays


@pytest.mark.annex("interop")
def test_parameters_from_a_caffemodel(tmp_path):
    path = tmp_path / "a.caffemodel"
    arrays = _caffemodel(path)
    model = Small(path)
    for found, name in (
        (model.conv.W.array, "W"),
        (model.conv.b.array, "b"),
        (model.bn.avg_mean, "mean"),
        (model.bn.avg_var, "var"),
        (model.bn.gamma.array, "gamma"),
        (model.bn.beta.array, "beta"),
        (model.fc.W.array, "fc"),
    ):
        np.testing.assert_array_equal(found, arrays[name].astype(np.float32))
    np.testing.assert_array_equal(model.fc.b.array, np.zeros(5))
    _caffemodel(path, fc=np.zeros((5, 3)))
    message = r"W of its layer 'fc' has shape \(5, 3\), but must have \(5, 4\)"
    with pytest.raises(ValueError, match=message):
        Small(path)
    _caffemodel(path, mean=np.zeros(3), var=np.ones(3))
    message = r"avg_mean of its layer 'bn' has shape \(3,\), but must have \(4,\)"
    with pytest.raises(ValueError, match=message):
        Small(path)
    path.write_bytes(layer("conv/3x3", "ReLU", ["x"], ["y"]))
    with pytest.raises(ValueError, match="it has no layer 'conv/3x3' with parameters"):
        Small(path)


def test_a_file_of_another_network(tmp_path):
    save_npz(tmp_path / "a.npz", L.Linear(3, 4))
    with pytest.raises(mpchain.serializers.MissingKeyError, match="conv/W"):
        Small(tmp_path / "a.npz")


# Published parameters.


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MPCHAIN_DATASET_ROOT", str(tmp_path / "cache"))
    folder = tmp_path / "cache/pfnet/chainer/models"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Returns a function that publishes the parameters of :class:`Small` at an address; None
    publishes none."""

    site = (tmp_path / "site.caffemodel").as_uri()

    def publish(url=site, sha1=None):
        model = PublishedModel("net.caffemodel", url, "https://page", sha1)
        monkeypatch.setattr(Small, "published", model)

    return publish


@pytest.mark.annex("interop")
def test_published_parameters_are_fetched_once_and_converted(tmp_path, cache, publish):
    _caffemodel(tmp_path / "site.caffemodel")
    content = (tmp_path / "site.caffemodel").read_bytes()
    publish(sha1=hashlib.sha1(content).hexdigest())
    first = Small(pretrained_model="auto")
    os.unlink(tmp_path / "site.caffemodel")
    second = Small(pretrained_model="auto")
    _same(first, second)
    model = Small()
    load_npz(cache / "net.npz", model)
    _same(first, model)


@pytest.mark.annex("interop")
def test_parameters_that_were_placed_by_hand(cache, publish):
    publish()
    arrays = _caffemodel(cache / "net.caffemodel")
    model = Small(pretrained_model="auto")
    np.testing.assert_array_equal(model.fc.W.array, arrays["fc"].astype(np.float32))
    assert (cache / "net.npz").exists()


@pytest.mark.annex("interop")
def test_without_network_the_place_is_told(cache, publish):
    publish()
    place = rf"place net.caffemodel \(see https://page\) as {cache}/net.caffemodel, or give the"
    with pytest.raises(OSError, match=f"could not be fetched: .* If you are offline, {place}"):
        Small(pretrained_model="auto")
    publish(None)
    with pytest.raises(OSError, match=f"these parameters cannot be downloaded: {place}"):
        Small(pretrained_model="auto")
    assert not (cache / "net.npz").exists()


@pytest.mark.annex("interop")
def test_a_download_with_the_wrong_checksum(tmp_path, cache, publish):
    _caffemodel(tmp_path / "site.caffemodel")
    publish(sha1="0" * 40)
    for _ in range(2):  # a wrong file is not kept
        with pytest.raises(OSError, match=f"must have the SHA-1 checksum {'0' * 40}"):
            Small(pretrained_model="auto")


# The networks.


@pytest.mark.parametrize("n", [17, 50])
def test_unknown_numbers_of_layers(n):
    with pytest.raises(ValueError, match=f"VGGLayers: n_layers must be 16 or 19, not {n}"):
        L.VGGLayers(None, n)
    with pytest.raises(ValueError, match=f"n_layers must be 50, 101 or 152, not {n + 1}"):
        L.ResNetLayers(None, n + 1)


def _strides(block):
    return [block.a[f"conv{i}"].stride[0] for i in (1, 2, 3, 4)]


def test_where_a_block_strides():
    assert _strides(resnet.BuildingBlock(2, 4, 4, 8, 2)) == [2, 1, 1, 2]
    assert _strides(resnet.BuildingBlock(2, 4, 4, 8, 2, downsample_fb=True)) == [1, 2, 1, 2]
    block = resnet.BuildingBlock(3, 4, 2, 8, 2)
    assert [unit.name for unit in block.units] == ["a", "b1", "b2"]
    assert block(np.zeros((2, 4, 8, 8), np.float32)).shape == (2, 8, 4, 4)


@pytest.mark.long
def test_resnet_runs_and_learns_from_a_step():
    np.random.seed(0)
    model = L.ResNet50Layers(None)
    x = np.random.randn(4, 3, 64, 64).astype(np.float32)
    t = np.array([1, 7, 3, 2], np.int32)
    optimizer = mpchain.optimizers.SGD(0.001).setup(model)

    def loss():
        return mpchain.functions.softmax_cross_entropy(model(x, ["fc6"])["fc6"], t)

    before = loss()
    optimizer.update(loss)
    assert loss().item() < before.item()
    outputs = model(x, layers=model.available_layers)
    assert {name: y.shape[1:] for name, y in outputs.items()} == {
        "conv1": (64, 32, 32),
        "pool1": (64, 16, 16),
        "res2": (256, 16, 16),
        "res3": (512, 8, 8),
        "res4": (1024, 4, 4),
        "res5": (2048, 2, 2),
        "pool5": (2048,),
        "fc6": (1000,),
        "prob": (1000,),
    }


@pytest.mark.slow
def test_googlenet_runs():
    model = L.GoogLeNet(None)
    x = np.random.RandomState(0).randn(1, 3, 224, 224).astype(np.float32)
    with mpchain.using_config("train", False), mpchain.no_backprop_mode():
        y = model(x, layers=["inception_4a", "pool5", "prob", "loss1_fc2", "loss2_fc2"])
    shapes = [(512, 14, 14), (1024, 1, 1), (1000,), (1000,), (1000,)]
    assert [v.shape[1:] for v in y.values()] == shapes


# Caffe's names of the layers.


@pytest.mark.parametrize(
    "make, n, some",
    [
        (
            lambda: resnet.ResNet50Layers(None),
            160,
            ["res4f_branch2c", "bn3d_branch2a", "res5a_branch1"],
        ),
        (
            lambda: resnet.ResNet101Layers(None),
            313,
            ["res4b22_branch2c", "res3b3_branch2a", "res2c_branch2b"],
        ),
        (
            lambda: resnet.ResNet152Layers(None),
            466,
            ["res4b35_branch2c", "res3b7_branch2a", "res5c_branch2b"],
        ),
        (lambda: googlenet.GoogLeNet(None), 64, ["conv1/7x7_s2", "inception_4e/pool_proj"]),
        (lambda: vgg.VGG19Layers(None), 19, ["conv5_4", "fc8"]),
    ],
)
def test_layers_that_are_taken_from_caffe(monkeypatch, without_values, make, n, some):
    asked = []
    note = lambda link, caffe, *names: asked.extend(names)
    copies = [(module, "copy_layer") for module in (resnet, googlenet, vgg)]
    for module, name in (*copies, (resnet, "copy_normalization")):
        monkeypatch.setattr(module, name, note)
    model = make()
    model.transfer_from_caffe(None)
    assert len(asked) == len(set(asked)) and set(some) <= set(asked)
    assert len(asked) == n
