"""Tests types of layers that programs add to Chainer's Caffe reader."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F

pytestmark = pytest.mark.annex("interop")


@pytest.fixture
def path(tmp_path):
    from mpchain.exporters.caffe_messages import net_class

    layers = [
        {"name": "norm", "type": "Normalize", "bottom": ["data"], "top": ["norm"],
         "blobs": [{"shape": {"dim": [3]}, "data": [1.0, 2.0, 3.0]}]},
        {"name": "relu", "type": "ReLU", "bottom": ["norm"], "top": ["relu"]},
    ]  # fmt: skip
    path = tmp_path / "net.caffemodel"
    path.write_bytes(net_class()(layer=layers).SerializeToString())
    return str(path)


def test_a_program_adds_a_type_of_layers(path, monkeypatch):
    from chainer.links.caffe import CaffeFunction, caffe_function

    from mpchain.compat import caffe

    monkeypatch.setattr(caffe, "_type_to_method", {})
    monkeypatch.setattr(CaffeFunction, "_add_layer", CaffeFunction._add_layer)
    assert CaffeFunction(path)._unknown_types == {"norm": "Normalize"}

    class Scaled(mpchain.Link):
        def __init__(self, n):
            super().__init__()
            with self.init_scope():
                self.scale = mpchain.Parameter(0, (n,))

        def forward(self, x):
            return F.normalize(x) * F.broadcast_to(self.scale, x.shape)

    @caffe_function._layer("Normalize", None)
    def add(self, layer):
        blob = layer.blobs[0]
        assert not layer.HasField("pooling_param") and layer.pooling_param.stride == 1
        link = Scaled(caffe_function._get_num(blob))
        link.scale.array[:] = blob.data
        with self.init_scope():
            setattr(self, layer.name, link)
        self.forwards[layer.name] = caffe_function._CallChildLink(self, layer.name)
        self._add_layer(layer)

    net = CaffeFunction(path)
    assert net.layers == [("norm", ["data"], ["norm"]), ("relu", ["norm"], ["relu"])]
    x = np.array([[3.0, -4.0, 0.0]], "f")
    (y,) = net(inputs={"data": x}, outputs=["relu"])
    np.testing.assert_allclose(y.array, [[0.6, 0.0, 0.0]], rtol=1e-4)
    assert [name for name, _ in net.namedparams()] == ["/norm/scale"]


def test_fields_that_are_not_read_are_named():
    from mpchain.compat import caffe

    layer = caffe.Message({"name": "a"}, "Layer")
    assert (layer.name, layer.bottom, layer.convolution_param.bias_term) == ("a", [], True)
    with pytest.raises(AttributeError, match="mpchain reads no field 'norm_param' of Caffe's"):
        layer.norm_param
