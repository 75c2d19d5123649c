"""Reads the manifest of a checkpoint and checks every entry."""

import os
from typing import Any

from mpchain.distributed.checkpoints.layout import MANIFEST, Path, read_json
from mpchain.serializer import DamagedFileError, SerializationError

FORMAT = "mpchain checkpoint 1"
_FORMATS = "mpchain checkpoint "


def read(path: Path) -> dict[str, Any]:
    """Reads and verifies the manifest of a checkpoint.

    Raises:
        DamagedFileError: the manifest is not valid; the message names the entry.
        SerializationError: another version of mpchain wrote the checkpoint.
        OSError: the file cannot be read.
    """
    file = os.path.join(path, MANIFEST)
    manifest = read_json(file)
    form = manifest.get("format") if isinstance(manifest, dict) else None
    if form != FORMAT and isinstance(form, str) and form.startswith(_FORMATS):
        raise SerializationError(
            f"load_checkpoint: {file} has format {form!r}, but this version of mpchain reads only "
            f"{FORMAT!r}; load it with the version that wrote it, or move {path} elsewhere to use "
            "the checkpoint before it"
        )
    _check(manifest, os.path.basename(path))
    return manifest


def _check(manifest, name):
    def check(is_right, entry, value, rule):
        if not is_right:
            raise DamagedFileError(f"{MANIFEST}: {entry} must be {rule}, not {_short(value)}")

    check(isinstance(manifest, dict), "it", manifest, "an object")
    get = manifest.get
    check(get("format") == FORMAT, "format", get("format"), repr(FORMAT))
    check(get("name") == name, "name", get("name"), repr(name))
    n, parts, values = get("ranks"), get("parts"), get("values")
    check(_is_count(n) and n > 0, "ranks", n, "an integer of at least 1")
    check(isinstance(parts, list), "parts", parts, "a list")
    check(len(parts) == n, "ranks", n, f"the number of parts, {len(parts)}")
    for i, seal in enumerate(parts):
        is_seal = isinstance(seal, dict) and _is_count(seal.get("bytes"))
        check(
            is_seal and isinstance(seal.get("sha256"), str),
            f"parts[{i}]",
            seal,
            "an object with bytes and sha256",
        )
    check(isinstance(values, dict), "values", values, "an object")
    for key, entries in values.items():
        check(
            isinstance(entries, list) and entries, f"values[{key!r}]", entries, "a list of entries"
        )
        for entry in entries:
            check(_is_entry(entry, n), f"values[{key!r}]", entry, f"a valid entry for {n} ranks")
        kinds = {("start" in entry, repr(entry.get("shape"))) for entry in entries}
        check(len(kinds) == 1, f"values[{key!r}]", entries, "parts of one array, or whole values")


def _is_entry(entry, n_ranks):
    if not isinstance(entry, dict) or not isinstance(entry.get("ranks"), list):
        return False
    ranks = [entry.get("part"), *entry["ranks"]]
    if len(ranks) == 1 or not all(_is_count(rank) and rank < n_ranks for rank in ranks):
        return False
    is_part = isinstance(entry.get("shape"), list) and all(map(_is_count, entry["shape"]))
    return "start" not in entry or (_is_count(entry["start"]) and is_part)


def _is_count(value):
    return type(value) is int and value >= 0


def _short(value):
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]} ..."
