"""Messages of protocol buffers, against bytes from the format's documentation and by hand."""

import struct

import numpy as np
import pytest

from mpchain.utils.protobuf import MessageType, as_text, decode, encode

INNER = MessageType({1: "int a", 2: "repeated string names"})
OUTER = MessageType(
    {
        1: "int number",
        2: "string text",
        3: "Inner inner",
        4: "packed int counts",
        5: "packed float values",
        6: "repeated float loose",
        7: "bool flag",
        8: "double wide",
        16: "repeated Inner inners",
    },
    Inner=INNER,
)
MESSAGE = {
    "number": -3,
    "text": 'café "quoted"\n',
    "inner": {"a": 150},
    "counts": [3, 270, 86942],
    "flag": True,
    "wide": 0.1,
    "inners": [{"a": 1, "names": ["x", "y"]}, {}],
}


@pytest.mark.parametrize(
    "content, message",
    [
        (b"\x08\x96\x01", {"number": 150}),
        (b"\x12\x07testing", {"text": "testing"}),
        (b"\x1a\x03\x08\x96\x01", {"inner": {"a": 150}}),
        (b"\x22\x06\x03\x8e\x02\x9e\xa7\x05", {"counts": [3, 270, 86942]}),
        (b"\x08" + b"\xff" * 9 + b"\x01", {"number": -1}),
        (b"\x82\x01\x00\x82\x01\x02\x08\x05", {"inners": [{}, {"a": 5}]}),
        (b"", {}),
    ],
)
def test_examples_of_the_documentation(content, message):
    assert decode(content, OUTER) == message
    assert encode(message, OUTER) == content


def test_what_is_written_is_read_back():
    assert decode(encode(MESSAGE, OUTER), OUTER) == MESSAGE


def test_floats_come_as_arrays_packed_or_not():
    values = np.array([1.5, -2.0, 3.25], np.float32)
    read = decode(encode({"values": values, "loose": values}, OUTER), OUTER)
    for name in ("values", "loose"):
        np.testing.assert_array_equal(read[name], values)
        assert read[name].dtype == np.float32
    loose = b"".join(b"\x2d" + struct.pack("<f", v) for v in values)
    np.testing.assert_array_equal(decode(loose, OUTER)["values"], values)
    assert decode(b"\x20\x07\x20\x08", OUTER) == {"counts": [7, 8]}


def test_fields_that_the_type_does_not_list_are_skipped():
    unknown = b"\x48\x05" + b"\x51" + bytes(8) + b"\x5a\x02ab" + b"\x65" + bytes(4)
    assert decode(unknown + b"\x08\x01", OUTER) == {"number": 1}


def test_the_last_of_several_counts():
    assert decode(b"\x08\x01\x08\x02", OUTER) == {"number": 2}


@pytest.mark.parametrize(
    "content, message",
    [
        (b"\x08", "no number ends"),
        (b"\x08" + b"\xff" * 11, "no number ends"),
        (b"\x12\x07test", "a field of 7 bytes begins at byte 2 of 6"),
        (b"\x0b", "there is no wire type 3"),
        (b"\x0a\x01\x00", "field 'number' has wire type 2"),
        (b"\x10\x01", "field 'text' has wire type 0"),
        (b"\x18\x01", "field 'inner' has wire type 0"),
        (b"\x2a\x03abc", "values has 3 bytes"),
        (b"\x22\x01\xff", "no number ends"),
    ],
)
def test_damage_is_reported(content, message):
    with pytest.raises(ValueError, match=message):
        decode(content, OUTER)


def test_every_truncation_is_an_error_or_a_message():
    content = encode(MESSAGE, OUTER)
    for n in range(len(content)):
        try:
            decode(content[:n], OUTER)
        except ValueError:
            continue


def test_unknown_names_cannot_be_written():
    with pytest.raises(KeyError):
        encode({"nowhere": 1}, OUTER)


def test_text():
    assert as_text(MESSAGE, OUTER) == (
        "number: -3\n"
        'text: "café \\"quoted\\"\\n"\n'
        "inner {\n  a: 150\n}\n"
        "counts: 3\ncounts: 270\ncounts: 86942\n"
        "flag: true\n"
        "wide: 0.1\n"
        'inners {\n  a: 1\n  names: "x"\n  names: "y"\n}\n'
        "inners {\n}\n"
    )
