"""Tests Caffe's messages against bytes that the tests write, and damaged messages."""

import sys

import numpy as np
import pytest

from mpchain.exporters.caffe_messages import OLD_TYPES, as_text, decode, net_class
from tests.links.caffe_writer import blob, floating, inside, integer, layer, old_layer, varint

NET = inside(1, "net") + layer(
    *("fc", "InnerProduct", ["x"], ["y"]),
    inside(117, integer(1, -5), integer(2, 1)),
    blob(7, [[1.5, -2.0]]),
)


def _layer(*parts):
    """Returns the fields of a layer, in the form that ``decode`` returns."""
    return decode(layer("l", "ReLU", [], [], *parts))["layer"][0]


def test_a_network_becomes_dicts_lists_and_arrays():
    net = decode(NET)
    values = net["layer"][0].pop("blobs")[0].pop("data")
    np.testing.assert_array_equal(values, [1.5, -2.0])
    assert values.dtype == np.float32
    assert net["layer"][0].pop("inner_product_param") == {"num_output": -5, "bias_term": True}
    names = {"name": "fc", "type": "InnerProduct", "bottom": ["x"], "top": ["y"]}
    assert net == {"name": "net", "layer": [names]}


def test_what_is_written_is_read_back():
    blobs = [{"shape": {"dim": (1, 2)}, "data": np.array([1.5, -2.0], np.float32)}]
    param = {"num_output": np.int64(-5), "bias_term": True}
    names = {"name": "fc", "type": "InnerProduct", "bottom": ["x"], "top": ["y"]}
    message = {"name": "net", "layer": [names | {"blobs": blobs, "inner_product_param": param}]}
    assert net_class()(**message).SerializeToString(deterministic=True) == inside(1, "net") + layer(
        *("fc", "InnerProduct", ["x"], ["y"]),
        inside(7, inside(5, np.array([1.5, -2.0], "<f4").tobytes()), inside(7, inside(1, b"\1\2"))),
        inside(117, integer(1, -5), integer(2, 1)),
    )


def test_numbers_may_come_packed_or_one_by_one():
    loose = _layer(inside(7, floating(5, 1.5), floating(5, 2.0)))["blobs"][0]
    np.testing.assert_array_equal(loose["data"], [1.5, 2.0])
    for pads in ([integer(3, 1), integer(3, 2)], [inside(3, varint(1), varint(2))]):
        assert _layer(inside(106, *pads))["convolution_param"] == {"pad": [1, 2]}
    wide = _layer(blob(7, [0.1], "d"))["blobs"][0]["double_data"]
    assert wide == [0.1] and wide.dtype == np.float64


def test_unknown_fields_are_skipped_and_the_last_of_several_counts():
    unknown = integer(900, 5) + inside(901, "ab") + floating(902, 1.0)
    assert decode(unknown + inside(1, "a") + inside(1, "b")) == {"name": "b"}


def test_old_layers_have_numbers_for_types():
    old = decode(old_layer("c", 4, ["x"], ["y"]))["layers"][0]
    assert old == {"name": "c", "type": 4, "bottom": ["x"], "top": ["y"]}
    assert OLD_TYPES[old["type"]] == "Convolution"


@pytest.mark.parametrize(
    "content, message",
    [
        (NET[:-3], "truncated"),
        (b"\x0a\x07test", "truncated"),
        (b"\x08" + b"\xff" * 11, "damaged"),
        (b"\x0b" * 10_000, "damaged"),
        (layer("l", "ReLU", [], [], inside(7, inside(5, b"abc"))), "damaged"),
        (inside(1, b"\xff\xfe"), "field 'name' is not UTF-8"),
        (layer("l", "ReLU", [b"\xff"], []), "field 'bottom' is not UTF-8"),
        (integer(1, 5), "field 'name' has wire type 0"),
        (layer("l", "ReLU", [], [], integer(7, 1)), "field 'blobs' has wire type 0"),
        (layer("l", "ReLU", [], [], inside(121, inside(1, "ab"))), "field 'pool' has wire type 2"),
    ],
)
def test_damage_is_reported(content, message):
    with pytest.raises(ValueError, match=message):
        decode(content)


def test_every_truncation_is_an_error_or_a_message():
    for n in range(len(NET)):
        try:
            decode(NET[:n])
        except ValueError:
            continue


def test_names_that_the_tables_lack_cannot_be_written():
    with pytest.raises(ValueError, match="nowhere"):
        as_text({"nowhere": 1})


def test_text():
    relu = {"type": "ReLU", "relu_param": {"negative_slope": 0.1}}
    assert as_text({"name": 'café "quoted"\n', "layer": [relu]}) == (
        'name: "café \\"quoted\\"\\n"\n'
        'layer {\n  type: "ReLU"\n  relu_param {\n    negative_slope: 0.1\n  }\n}\n'
    )


def test_without_the_library_the_error_says_what_to_install(monkeypatch):
    net_class.cache_clear()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(ImportError, match="pip install protobuf"):
        decode(NET)
