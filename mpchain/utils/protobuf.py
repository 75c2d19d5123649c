"""Protocol buffers: the wire format, for messages that a table describes.

A message type is a :class:`MessageType`; a message is a dictionary of the fields that are there, a
repeated field's value a list (of packed numbers, an array). Fields that the type does not list are
skipped when read.

Format: https://protobuf.dev/programming-guides/encoding
"""

import struct
from typing import NamedTuple

import numpy as np

_NUMBERS = {"float": np.dtype("<f4"), "double": np.dtype("<f8")}
_WIRE_VARINT, _WIRE_64, _WIRE_BYTES, _WIRE_32 = 0, 1, 2, 5


class Field(NamedTuple):
    """One field of a message type.

    Attributes:
        name (str): its name.
        kind: ``'int'``, ``'bool'``, ``'float'``, ``'double'``, ``'string'``, or a message type.
        repeated (bool): whether it may occur several times.
        packed (bool): whether repeated numbers are written as one block.
    """

    name: str
    kind: object
    repeated: bool = False
    packed: bool = False


class MessageType:
    """A message type: :class:`Field` by number.

    Args:
        fields: for each number a text, ``'kind name'``, ``'repeated kind name'`` or ``'packed kind
            name'``.
        types: the message types that these name.
    """

    def __init__(self, fields, **types):
        self.fields = {number: _field(text, types) for number, text in fields.items()}
        self.numbers = {field.name: number for number, field in self.fields.items()}


def _field(text, types):
    *label, kind, name = text.split()
    return Field(name, types.get(kind, kind), bool(label), label == ["packed"])


def decode(content, message_type):
    """Reads a message.

    Args:
        content: bytes or memoryview.
        message_type (MessageType): what it is.

    Returns:
        dict: value by name of the fields that are there.

    Raises:
        ValueError: it is damaged, or no message of that type.
    """
    content = memoryview(content)
    message, place = {}, 0
    while place < len(content):
        key, place = _read_varint(content, place)
        number, wire = key >> 3, key & 7
        payload, place = _read_payload(content, place, wire)
        field = message_type.fields.get(number)
        if field is None:
            continue
        value = _value(field, wire, payload)
        if not field.repeated:
            message[field.name] = value
        elif isinstance(value, np.ndarray):  # a large block is not made a list of
            before = message.get(field.name)
            message[field.name] = value if before is None else np.append(before, value)
        else:
            message.setdefault(field.name, []).extend(value)
    return message


def _read_varint(content, place):
    value = shift = 0
    while place < len(content) and shift < 64:
        byte = content[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise ValueError(f"protobuf: damaged or truncated: no number ends at byte {place}")


def _read_payload(content, place, wire):
    if wire == _WIRE_VARINT:
        return _read_varint(content, place)
    if wire == _WIRE_BYTES:
        size, place = _read_varint(content, place)
    elif wire in (_WIRE_32, _WIRE_64):
        size = 4 if wire == _WIRE_32 else 8
    else:
        raise ValueError(f"protobuf: damaged: there is no wire type {wire} (byte {place})")
    if place + size > len(content):
        raise ValueError(
            f"protobuf: truncated: a field of {size} bytes begins at byte {place} of {len(content)}"
        )
    return content[place : place + size], place + size


def _value(field, wire, payload):
    """The value of one occurrence of a field; of a repeated one the list of its values."""
    kind = field.kind
    _check_wire(field, wire)
    if kind in _NUMBERS:
        if len(payload) % _NUMBERS[kind].itemsize:
            raise ValueError(f"protobuf: damaged: {field.name} has {len(payload)} bytes")
        values = np.frombuffer(payload, _NUMBERS[kind])
        return values if field.repeated else values[-1].item()
    if isinstance(kind, MessageType):
        value = decode(payload, kind)
    elif kind == "string":
        value = str(payload, "utf-8")
    elif wire == _WIRE_BYTES:  # packed integers
        values, place = [], 0
        while place < len(payload):
            value, place = _read_varint(payload, place)
            values.append(_signed(value))
        return values
    else:
        value = bool(payload) if kind == "bool" else _signed(payload)
    return [value] if field.repeated else value


def _check_wire(field, wire):
    allowed = {
        "float": (_WIRE_32,),
        "double": (_WIRE_64,),
        "int": (_WIRE_VARINT,),
        "bool": (_WIRE_VARINT,),
    }.get(field.kind if isinstance(field.kind, str) else None, (_WIRE_BYTES,))
    if wire not in allowed and not (field.repeated and wire == _WIRE_BYTES):
        raise ValueError(f"protobuf: damaged: field {field.name!r} has wire type {wire}")


def _signed(value):
    return value - (1 << 64) if value >> 63 else value


def encode(message, message_type):
    """Writes a message (see :func:`decode`) as bytes.

    Raises:
        KeyError: the type has no field of that name.
    """
    parts = []
    for name, value in message.items():
        number = message_type.numbers[name]
        field = message_type.fields[number]
        if field.packed:
            payload = _packed(field.kind, value)
            parts.append(_varint(number << 3 | _WIRE_BYTES) + _varint(len(payload)))
            parts.append(payload)
            continue
        for one in value if field.repeated else [value]:
            parts.append(_occurrence(number, field.kind, one))
    return b"".join(parts)


def _packed(kind, values):
    if kind in _NUMBERS:
        return np.ascontiguousarray(values, _NUMBERS[kind]).tobytes()
    return b"".join(map(_varint, values))


def _occurrence(number, kind, value):
    if kind in _NUMBERS:
        wire = _WIRE_32 if kind == "float" else _WIRE_64
        return _varint(number << 3 | wire) + struct.pack("<f" if kind == "float" else "<d", value)
    if kind in ("int", "bool"):
        return _varint(number << 3 | _WIRE_VARINT) + _varint(int(value))
    payload = value.encode() if kind == "string" else encode(value, kind)
    return _varint(number << 3 | _WIRE_BYTES) + _varint(len(payload)) + payload


def _varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def as_text(message, message_type, indent=""):
    """Writes a message in the text format, which people read."""
    lines = []
    for name, value in message.items():
        field = message_type.fields[message_type.numbers[name]]
        for one in value if field.repeated else [value]:
            if isinstance(field.kind, MessageType):
                inside = as_text(one, field.kind, indent + "  ")
                lines.append(f"{indent}{name} {{\n{inside}{indent}}}\n")
            else:
                lines.append(f"{indent}{name}: {_as_text(one)}\n")
    return "".join(lines)


def _as_text(value):
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.8g}" if isinstance(value, float) else str(value)
