"""Tests the file of a record, fingerprints, and the selection of pieces."""

import numpy as np
import pytest

from mpchain.replays import fingerprints, records
from mpchain.replays.pieces import PERIOD, Table
from mpchain.replays.records import FORMAT, NAME, RecordError, Writer


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    writer = Writer(str(tmp_path))
    for content in ({"format": FORMAT}, {"t": 1}):
        writer.write(content)
    path = tmp_path / NAME
    whole = path.read_bytes()
    for n in range(1, 10):
        path.write_bytes(whole[:-n])
        assert records.read(tmp_path) == [{"format": FORMAT}]
    Writer(str(tmp_path)).write({"t": 2})
    assert records.read(tmp_path) == [{"format": FORMAT}, {"t": 2}]


def test_damage_is_named(tmp_path):
    with pytest.raises(RecordError, match="there is no record in"):
        records.read(tmp_path)
    path = tmp_path / NAME
    path.write_bytes(b"")
    with pytest.raises(RecordError, match="holds no whole line"):
        records.read(tmp_path)
    path.write_bytes(records.line_of({"format": FORMAT + 1}))
    with pytest.raises(RecordError, match="has format 2, but this version"):
        records.read(tmp_path)
    lines = [records.line_of({"format": FORMAT}), *(records.line_of({"t": t}) for t in (1, 2))]
    path.write_bytes(b"".join(lines).replace(b'"t":1', b'"t":3'))
    with pytest.raises(RecordError, match=r"record\.jsonl is damaged in line 2: restore it"):
        records.read(tmp_path)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("n", [1, 7, 1000, 70_001])
def test_each_bit_counts_and_sums_see_what_matters(dtype, n):
    random = np.random.RandomState(0)
    x = random.standard_normal(n).astype(dtype)
    before = fingerprints.take(x)
    norm = np.linalg.norm(x.astype(np.float64))
    assert before.norm == pytest.approx(norm, rel=0.1)
    assert fingerprints.take(x.copy()) == before
    for place in {0, n // 3, n - 1}:
        for bit in (0, 8 * x.itemsize - 2):
            other = x.copy()
            other.view(np.uint8)[place * x.itemsize + bit // 8] ^= 1 << bit % 8
            assert fingerprints.take(other).bits != before.bits
        other = x.copy()
        other[place] += 1
        change = fingerprints.take(other).sum - before.sum
        assert abs(change) == pytest.approx(1, rel=1e-2)


def test_arrays_that_are_not_finite_and_views():
    x = np.arange(200_000, dtype=np.float32).reshape(400, 500)
    assert fingerprints.take(x.T).bits == fingerprints.take(np.ascontiguousarray(x.T)).bits
    for bad in (np.nan, np.inf):
        y = x.copy()
        y[3, 4] = bad
        assert not fingerprints.all_finite([fingerprints.take(y)])
        assert not np.isfinite(fingerprints.unpacked(fingerprints.take(y)).norm)


class _Param:
    dtype = np.dtype(np.float32)

    def __init__(self, n):
        self.size, self.shape = n, (n,)


@pytest.mark.parametrize(
    "sizes",
    [[10, 20], [100] * 700, [10**7] + [10] * 61, [10] * 200 + [10**8], [300] * 2000 + [10**6] * 50],
)
def test_each_piece_has_its_turn_in_a_period(sizes):
    table = Table({str(i): _Param(n) for i, n in enumerate(sizes)})
    turns = [table.turn(t, 0) for t in range(5, 5 + PERIOD)]
    assert {i for turn in turns for i in range(*turn)} == {*range(len(table.pieces))}
    longest = max(last - first for first, last in turns)
    assert longest * fingerprints.SIZE * 4 / 3 < 750
    if sum(sizes) > 10**6:
        assert max(table.n_elements(*turn) for turn in turns) < 0.2 * sum(sizes)
    for t in range(PERIOD):  # with more time, a step also records what it records with less time
        first, last = table.turn(t, 0)
        begin, end = table.turn(t, sum(sizes) / 2)
        assert begin <= first and last <= end
