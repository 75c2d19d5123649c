"""Tests checkpoints from other numbers of ranks, and files that are damaged, wrong or
unreadable."""

import contextlib
import errno
import hashlib
import io
import os
import resource
import shutil
import tracemalloc
import types
import zipfile

import numpy as np
import pytest

import mpchain
from mpchain.distributed import load_checkpoint, save_checkpoint
from mpchain.distributed.checkpoints import layout
from mpchain.distributed.communicators import Communicator
from mpchain.serializer import SerializationError
from tests.distributed.checkpoints.checkpointing import (
    Divided,
    Numbers,
    alone,
    damage,
    load_as,
    save_as,
)

# Other numbers of ranks, which are imitated in this process


@pytest.mark.parametrize("n_saved", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_parts_are_put_together(tmp_path, n_saved, n):
    save_as(tmp_path, [Divided(r, n_saved) for r in range(n_saved)])
    for loaded in load_as(tmp_path, [Divided(r, n) for r in range(n)]):
        np.testing.assert_array_equal(loaded.loaded, Divided.whole)


def test_parts_that_do_not_make_up_the_whole(tmp_path):
    incomplete = Divided(1, 2)
    incomplete.part = incomplete.part[1:]
    save_as(tmp_path, [Divided(0, 2), incomplete])
    with pytest.raises(SerializationError, match="'x': the parts of the ranks do not make up"):
        load_as(tmp_path, [Divided(0, 1)])


def test_empty_parts(tmp_path):
    all_of_it, nothing = Divided(0, 1), Divided(1, 1)
    assert nothing.part.size == 0
    nothing.begin = 0
    save_as(tmp_path, [nothing, all_of_it])
    np.testing.assert_array_equal(load_as(tmp_path, [Divided(0, 1)])[0].loaded, Divided.whole)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_what_belongs_to_each_rank(tmp_path, n):
    key = "extensions/log/n"
    only_0, only_1 = "extensions/of_0", "extensions/of_1"
    save_as(
        tmp_path,
        [
            Numbers(**{key: 0, only_0: 5, "_random/numpy": 0, "_random/python": 7}),
            Numbers(**{key: 1, "_random/numpy": 1, "_random/python": 7}),
            Numbers(**{key: 2, only_1: 6, "_random/numpy": 2, "_random/python": 7}),
        ],
    )
    for rank, loaded in enumerate(load_as(tmp_path, [Numbers(**{key: -1}) for _ in range(n)])):
        assert loaded.values[key] == min(rank, 2)
    for loaded in load_as(tmp_path, [Numbers(**{only_0: -1, only_1: -1}) for _ in range(n)]):
        assert loaded.values == {only_0: 5, only_1: 6}
    for loaded in load_as(tmp_path, [Numbers(**{"_random/python": -1}) for _ in range(n)]):
        assert loaded.values["_random/python"] == 7
    known = [Numbers(**{"_random/numpy": -1}) for _ in range(min(n, 3))]
    assert [x.values["_random/numpy"] for x in load_as(tmp_path, known)] == [0, 1, 2][:n]
    if n > 3:
        new = [Numbers(), Numbers(), Numbers(), Numbers(**{"_random/numpy": -1})]
        with pytest.raises(SerializationError, match="_random/numpy"):
            load_as(tmp_path, new)


def test_models_that_differ_between_ranks(tmp_path):
    save_as(tmp_path, [Numbers(x=np.array([float(r)])) for r in range(2)])
    loaded = load_as(tmp_path, [Numbers(x=np.zeros(1)) for _ in range(2)])
    assert [x.values["x"].tolist() for x in loaded] == [[0.0], [1.0]]
    for n in (1, 3):
        message = rf"'x' differs between the 2 ranks .* only 2 ranks can load it, not {n}; load it"
        with pytest.raises(SerializationError, match=message):
            load_as(tmp_path, [Numbers(x=np.zeros(1)) for _ in range(n)])


def make_link(**values):
    """Returns a chain whose child has the given persistent values."""
    link = mpchain.Chain(child=mpchain.Link())
    for name, value in values.items():
        link.child.add_persistent(name, value)
    return link


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_persistent_values_that_differ_between_ranks(tmp_path, n, dtype):
    """On another number of ranks, a value becomes the mean over the three ranks that saved it, of
    which two have the same value; a counter becomes the largest."""
    held = np.array([[0.1, -1, 1e4], [0.3, 1, 2e4], [0.3, 1, 2e4]], dtype)
    counts = [7, 9, 8]
    save_as(
        tmp_path,
        [make_link(mean=x.copy(), scale=float(x[0]), N=c) for x, c in zip(held, counts)],
    )
    targets = [make_link(mean=np.zeros(3, dtype), scale=0.0, N=0) for _ in range(n)]
    for rank, link in enumerate(load_as(tmp_path, targets)):
        child = link.child
        assert child.mean.dtype == dtype
        if n == 3:  # on as many ranks, each rank gets its own bits
            assert (child.mean.tolist(), child.N) == (held[rank].tolist(), counts[rank])
            assert child.scale == float(held[rank][0])
        else:
            expected = held.astype("f8").mean(0)
            np.testing.assert_allclose(child.mean, expected, rtol=2 * np.finfo(dtype).eps)
            assert abs(child.scale - held[:, 0].astype("f8").mean()) < 1e-15
            assert child.N == 9


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.array([1, 2]), np.array([2, 1])),
        (np.zeros(2), np.zeros(3)),
        (np.zeros(2, "f4"), np.zeros(2)),
        (None, np.zeros(2)),
        (True, False),
        ("a", "b"),
    ],
)
def test_persistent_values_that_cannot_be_combined(tmp_path, one, other):
    save_as(tmp_path, [make_link(x=one), make_link(x=other)])
    with pytest.raises(SerializationError, match="'child/x' differs between the 2 ranks"):
        load_as(tmp_path, [make_link(x=other)])
    first, second = load_as(tmp_path, [make_link(x=one), make_link(x=other)])
    np.testing.assert_array_equal(first.child.x, one)
    np.testing.assert_array_equal(second.child.x, other)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_errors_of_a_compression_are_each_ranks_own(tmp_path, n):
    key = "updater/optimizer:main/exchange/compression/rank"
    save_as(tmp_path, [Numbers(**{key: f"{rank} of 2"}) for rank in range(2)])
    loaded = load_as(tmp_path, [Numbers(**{key: ""}) for _ in range(n)])
    assert [x.values[key] for x in loaded] == ["0 of 2", "1 of 2", "1 of 2"][:n]


def test_any_flipped_byte_is_noticed(comm, tmp_path):
    if comm.size > 1:
        pytest.skip("runs on one rank only; several ranks do the same")
    save_checkpoint(tmp_path / "a", Numbers(x=np.arange(3.0), s="text", n=None), comm, 1)
    for file in ("part_0.npz", "manifest.json"):
        size = (tmp_path / "a" / "iteration_1" / file).stat().st_size
        for at in range(0, size, 7):
            shutil.rmtree(tmp_path / "b", ignore_errors=True)
            shutil.copytree(tmp_path / "a", tmp_path / "b")
            path = tmp_path / "b" / "iteration_1" / file
            content = bytearray(path.read_bytes())
            content[at] ^= 0x40
            path.write_bytes(content)
            with pytest.raises(SerializationError, match=rf"iteration_1: {file} is damaged"):
                load_checkpoint(tmp_path / "b", Numbers(), comm)
            assert os.listdir(tmp_path / "b") == ["iteration_1"]


# Files that cannot be read, or that have wrong content


def raise_when_opened(monkeypatch, comm, rank, name, number):
    """Makes opening files of the given name fail on one rank."""

    def opening(path):
        if comm.rank == rank and os.path.basename(path) == name:
            raise OSError(number, os.strerror(number), str(path))
        return open(path, "rb")

    monkeypatch.setattr(layout, "open_when_visible", opening)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE, errno.EACCES])
@pytest.mark.parametrize("file", ["part", "manifest.json"])
def test_a_file_that_cannot_be_read_is_not_damaged(comm, folder, monkeypatch, number, file):
    for iteration in (1, 2):
        save_checkpoint(folder, Numbers(x=iteration), comm, iteration)
    comm.barrier()
    failing = comm.size - 1 if file == "part" else 0
    name = f"part_{failing}.npz" if file == "part" else file
    with monkeypatch.context() as patch:
        raise_when_opened(patch, comm, failing, name, number)
        message = rf"load_checkpoint: {os.strerror(number)} on rank {failing}; .*: '.*{name}'$"
        target = Numbers(x=0)
        with pytest.raises(OSError, match=message) as caught:
            load_checkpoint(folder, target, comm)
    assert caught.value.errno == number
    assert layout.find(folder) == ["iteration_1", "iteration_2"]
    assert target.values == {"x": 0}
    assert load_checkpoint(folder, target, comm) == 2


@contextlib.contextmanager
def no_more_files():
    """Context manager in which this process can open no further file."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_file_that_cannot_be_read_while_the_object_is_restored(comm, folder):
    class Restored(Numbers):
        def serialize(self, serializer):
            with no_more_files() if comm.rank == comm.size - 1 else contextlib.nullcontext():
                super().serialize(serializer)

    save_checkpoint(folder, Numbers(x=0), comm, 1)
    message = f"load_checkpoint: Too many open files on rank {comm.size - 1}; .*part_0"
    with pytest.raises(OSError, match=message):
        load_checkpoint(folder, Restored(x=0), comm)


@pytest.fixture
def disk(monkeypatch):
    """Returns a function that sets whether folders seem to be on disks of this host."""
    return lambda is_local: monkeypatch.setattr(layout, "is_local", lambda folder: is_local)


@pytest.mark.parametrize("file", ["part_0.npz", "manifest.json"])
def test_a_file_that_is_not_seen_yet(comm, folder, monkeypatch, disk, file):
    save_checkpoint(folder, Numbers(x=1), comm, 1)
    comm.barrier()
    path, looks = folder / "iteration_1" / file, []

    def sleep(seconds):
        looks.append(seconds)
        if len(looks) == 3:
            os.rename(folder / "hidden", path)

    # Only waits for files use this clock; ranks wait for each other by the real clock.
    clock = types.SimpleNamespace(sleep=sleep, monotonic=lambda: sum(looks))
    monkeypatch.setattr(layout, "time", clock)
    alone(comm, os.rename, path, folder / "hidden")
    assert load_checkpoint(folder, Numbers(x=0), comm) == 1
    assert len(looks) == (3 if comm.rank == 0 else 0)
    assert looks == sorted(looks)
    alone(comm, os.rename, path, folder / "hidden")
    disk(False)
    with pytest.raises(FileNotFoundError, match=f"No such file or directory on rank 0; .*{file}'"):
        load_checkpoint(folder, Numbers(x=0), comm)
    assert comm.rank > 0 or 29 < sum(looks[3:]) < layout.SECONDS_TO_APPEAR
    assert layout.find(folder) == ["iteration_1"]


@pytest.mark.parametrize("missing", ["part_0.npz", "manifest.json", "all"])
def test_what_is_missing_on_the_disk_of_the_only_host(missing, tmp_path, disk, clock):
    """A folder that was copied only in part, for example, must not end each start of the job."""
    disk(True)
    target = Numbers(x=0)
    for iteration in (1, 9):
        save_as(tmp_path, [Numbers(x=iteration)], iteration)
    if missing == "all":
        shutil.rmtree(tmp_path / "iteration_9")
        (tmp_path / "iteration_9").mkdir()
    else:
        (tmp_path / "iteration_9" / missing).unlink()
    file = "manifest.json" if missing == "all" else missing
    with pytest.warns(RuntimeWarning, match=f"iteration_9 is damaged: {file} is missing"):
        assert load_checkpoint(tmp_path, target, Communicator()) == 1
    assert target.values == {"x": 1}
    assert layout.find(tmp_path) == ["iteration_1"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("file", ["part_0.npz", "manifest.json"])
@pytest.mark.parametrize("make", [os.mkdir, getattr(os, "mkfifo", None)])
def test_what_is_no_regular_file_is_damaged(make, file, tmp_path):
    """Opening a pipe would wait for a writer forever."""
    target = Numbers(x=0)
    for iteration in (1, 9):
        save_as(tmp_path, [Numbers(x=iteration)], iteration)
    (tmp_path / "iteration_9" / file).unlink()
    make(tmp_path / "iteration_9" / file)
    with pytest.warns(RuntimeWarning, match=f"{file} is damaged: it is not a regular file"):
        assert load_checkpoint(tmp_path, target, Communicator()) == 1
    assert target.values == {"x": 1}


def test_a_part_that_is_not_seen_yet_while_the_object_is_restored(tmp_path, clock):
    """This rank cannot see the part yet, but another rank has verified it."""
    save_as(tmp_path, [Numbers(x=np.arange(3))])
    path = tmp_path / "iteration_1" / "part_0.npz"
    os.rename(path, tmp_path / "hidden")
    clock.wake = lambda seconds: os.rename(tmp_path / "hidden", path)
    (loaded,) = load_as(tmp_path, [Numbers(x=np.zeros(3))])
    assert loaded.values["x"].tolist() == [0, 1, 2]


def test_a_folder_that_cannot_be_listed(comm, folder):
    comm.allgather_obj(None)  # ranks that are not connected yet may need files
    with no_more_files() if comm.rank == 0 else contextlib.nullcontext():
        with pytest.raises(OSError, match="load_checkpoint: Too many open files on rank 0"):
            load_checkpoint(folder, Numbers(x=0), comm)


def test_all_checkpoints_are_damaged(comm, folder):
    """Training must not start from the beginning."""
    for iteration in (1, 2):
        save_checkpoint(folder, Numbers(x=iteration), comm, iteration)
    for iteration in (1, 2):
        alone(comm, damage, folder / f"iteration_{iteration}" / "part_0.npz")
    message = (
        rf"load_checkpoint: all 2 checkpoints in {folder} are damaged, and none was renamed; "
        r".*\niteration_2: part_0.npz is damaged: .*\niteration_1: part_0"
    )
    with pytest.raises(SerializationError, match=message):
        load_checkpoint(folder, Numbers(x=0), comm)
    comm.barrier()
    assert layout.find(folder) == ["iteration_1", "iteration_2"]


def test_a_format_of_a_later_version(comm, folder):
    for iteration in (1, 2):
        save_checkpoint(folder, Numbers(x=iteration), comm, iteration)
    manifest = folder / "iteration_2" / "manifest.json"
    alone(comm, layout.write_json, manifest, {"format": "mpchain checkpoint 2"})
    message = rf"{manifest} has format 'mpchain checkpoint 2', but .* move .* elsewhere"
    with pytest.raises(SerializationError, match=message):
        load_checkpoint(folder, Numbers(x=0), comm)
    comm.barrier()
    assert layout.find(folder) == ["iteration_1", "iteration_2"]


LIES = {
    "no object": (lambda m: [m], "it must be an object, not"),
    "many ranks": (lambda m: m | {"ranks": 10**7}, "ranks must be the number of parts, 1, not"),
    "no ranks": (lambda m: m | {"ranks": 0}, "ranks must be an integer of at least 1, not 0"),
    "text": (lambda m: m | {"ranks": "1"}, "ranks must be an integer of at least 1, not '1'"),
    "true": (lambda m: m | {"ranks": True}, "ranks must be an integer of at least 1, not True"),
    "name": (lambda m: m | {"name": "iteration_-3"}, "name must be 'iteration_2', not"),
    "no parts": (lambda m: m | {"parts": None}, "parts must be a list, not None"),
    "no seal": (
        lambda m: m | {"parts": [{}]},
        r"parts\[0\] must be an object with bytes and sha256",
    ),
    "negative size": (
        lambda m: m | {"parts": [m["parts"][0] | {"bytes": -1}]},
        r"parts\[0\] must be an object with bytes and sha256",
    ),
    "no values": (lambda m: {k: m[k] for k in m if k != "values"}, "values must be an object"),
    "no entries": (lambda m: m | {"values": {"x": []}}, r"values\['x'\] must be a list"),
    "no part": (
        lambda m: m | {"values": {"x": [{"ranks": [0]}]}},
        r"values\['x'\] must be a valid entry",
    ),
    "part 1": (
        lambda m: m | {"values": {"x": [{"part": 1, "ranks": [0]}]}},
        r"values\['x'\] must be a valid entry for 1 ranks",
    ),
    "rank 1": (
        lambda m: m | {"values": {"x": [{"part": 0, "ranks": [1]}]}},
        r"values\['x'\] must be a valid entry for 1 ranks",
    ),
    "negative shape": (
        lambda m: m | {"values": {"x": [{"part": 0, "ranks": [0], "start": 0, "shape": [-1]}]}},
        r"values\['x'\] must be a valid entry for 1 ranks",
    ),
    "another value": (
        lambda m: m | {"values": {"y": [{"part": 0, "ranks": [0]}]}},
        "part_0.npz is damaged: it lacks y",
    ),
    "nested": (lambda m: None, "manifest.json is damaged: maximum recursion depth"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_manifest_that_lies_is_damaged(tmp_path, name):
    comm = Communicator()
    for iteration in (1, 2):
        save_checkpoint(tmp_path, Numbers(x=iteration), comm, iteration)
    change, message = LIES[name]
    path = tmp_path / "iteration_2" / "manifest.json"
    content = layout.read_json(path)
    if name == "nested":
        text = "[" * 10**5 + "]" * 10**5
        path.write_text(f"{text}\n{hashlib.sha256(text.encode()).hexdigest()}\n")
    else:
        layout.write_json(path, change(content))
    target = Numbers(x=0)
    with pytest.warns(RuntimeWarning, match=message):
        assert load_checkpoint(tmp_path, target, comm) == 1
    assert target.values == {"x": 1}


def seal_again(folder, content):
    """Replaces the only part, and updates its size and checksum in the manifest."""
    part, manifest = folder / "part_0.npz", folder / "manifest.json"
    part.write_bytes(content)
    layout.write_json(manifest, layout.read_json(manifest) | {"parts": [layout.seal_of(part)]})


def test_a_part_that_is_no_archive(tmp_path):
    comm = Communicator()
    for iteration in (1, 2):
        save_checkpoint(tmp_path, Numbers(x=iteration), comm, iteration)
    seal_again(tmp_path / "iteration_2", b"PK")
    with pytest.warns(RuntimeWarning, match=r"part_0.npz is damaged: .* not an .npz file"):
        assert load_checkpoint(tmp_path, Numbers(x=0), comm) == 1


def test_a_compressed_array_that_could_fill_the_memory(tmp_path):
    comm = Communicator()
    save_checkpoint(tmp_path, Numbers(x=np.zeros(3)), comm, 1)
    content = io.BytesIO()
    np.savez_compressed(content, x=np.zeros(10**6))
    seal_again(tmp_path / "iteration_1", content.getvalue())
    tracemalloc.start()
    try:
        with pytest.raises(SerializationError, match=r"'x' has shape \(1000000,\) in the file but"):
            load_checkpoint(tmp_path, Numbers(x=np.zeros(3)), comm)
        # The limit is half of the array's bytes.
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_an_array_whose_header_lies(tmp_path):
    """No memory is allocated for data that the file does not contain."""
    comm = Communicator()
    save_checkpoint(tmp_path, Numbers(x=np.zeros(3)), comm, 1)
    stream, content = io.BytesIO(), io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**13,)}
    np.lib.format.write_array_header_1_0(stream, header)
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("x.npy", stream.getvalue() + bytes(24))
    seal_again(tmp_path / "iteration_1", content.getvalue())
    with pytest.raises(
        SerializationError, match=r"part_0.npz: array 'x' cannot be read: the member"
    ):
        load_checkpoint(tmp_path, Numbers(x=np.zeros(3)), comm)


def test_a_divided_array_of_a_shape_that_lies(tmp_path):
    save_as(tmp_path, [Divided(0, 1)])
    manifest = tmp_path / "iteration_1" / "manifest.json"
    content = layout.read_json(manifest)
    content["values"]["x"][0]["shape"] = [10**7, 10**7]
    layout.write_json(manifest, content)
    target = Divided(0, 1)
    with pytest.raises(SerializationError, match=r"'x' has shape \(10000000, 10000000\) in the"):
        load_as(tmp_path, [target])
    target.loaded = None  # None accepts any shape
    with pytest.raises(SerializationError, match="'x': the parts of the ranks do not make up"):
        load_as(tmp_path, [target])


@pytest.mark.parametrize("iteration", [-1, 1.5, "1", None])
def test_save_checkpoint_refuses_other_iterations(comm, folder, iteration):
    message = f"save_checkpoint: iteration must be an integer of at least 0, not {iteration!r}"
    with pytest.raises(ValueError, match=message):
        save_checkpoint(folder, Numbers(x=1), comm, iteration)
    assert os.listdir(folder) == []


def test_names_that_others_have_taken(comm, folder):
    """Files and links with names of checkpoints or of temporary folders are kept, and a link to a
    checkpoint can be loaded."""

    def lay():
        (folder / "elsewhere").mkdir()
        (folder / "elsewhere" / "file").touch()
        os.symlink(folder / "elsewhere", folder / ".iteration_8.x.tmp")
        (folder / ".iteration_9.x.tmp").touch()
        (folder / "iteration_9").touch()

    alone(comm, lay)
    for iteration in (1, 2):
        save_checkpoint(folder, Numbers(x=iteration), comm, iteration)

    def link():
        os.rename(folder / "iteration_2", folder / "elsewhere" / "iteration_2")
        os.symlink(folder / "elsewhere" / "iteration_2", folder / "iteration_2")

    alone(comm, link)
    target = Numbers(x=0)
    assert load_checkpoint(folder, target, comm) == 2
    assert target.values == {"x": 2}
    save_checkpoint(folder, target, comm, 3, n_retains=1)
    comm.barrier()
    assert layout.find(folder) == ["iteration_3"]
    assert sorted(os.listdir(folder / "elsewhere")) == ["file", "iteration_2"]
    names = {".iteration_8.x.tmp", ".iteration_9.x.tmp", "elsewhere", "iteration_9"}
    assert set(os.listdir(folder)) == names | {"iteration_3"}


def test_new_folders_survive_a_power_failure(tmp_path, monkeypatch):
    synced = []
    sync = layout.sync_folder
    monkeypatch.setattr(layout, "sync_folder", lambda path: synced.append(str(path)) or sync(path))
    layout.make_folder(tmp_path / "a" / "b")
    assert synced[:3] == [str(tmp_path / "a"), str(tmp_path), str(tmp_path.parent)]
    synced.clear()
    layout.make_folder(tmp_path / "a" / "b")
    assert synced == []
