"""Tests datasets of images in folders and in zip archives."""

import multiprocessing
import pickle
import subprocess
import sys
import threading
import zipfile

import numpy as np
import pytest

import mpchain
from mpchain import datasets

Image = pytest.importorskip("PIL.Image")


def picture(kind, seed=0):
    """Returns a random image, and the array that the dataset should return for it."""
    random = np.random.RandomState(seed)
    if kind == "bits":
        array = random.randint(0, 2, (4, 5)).astype(bool)
        return Image.fromarray(array), array[None]
    if kind == "grey16":
        array = random.randint(0, 60000, (4, 5)).astype(np.uint16)
        return Image.fromarray(array), array[None]
    if kind == "palette":
        array = random.randint(0, 4, (4, 5)).astype(np.uint8)
        image = Image.fromarray(array)
        image = image.convert("P")
        return image, np.asarray(image)[None]
    channels = {"grey": (), "color": (3,), "transparent": (4,), "grey+alpha": (2,)}[kind]
    array = random.randint(0, 256, (4, 5, *channels)).astype(np.uint8)
    return Image.fromarray(array), array.transpose(2, 0, 1) if channels else array[None]


KINDS = ["grey", "color", "transparent", "grey+alpha", "bits", "grey16", "palette"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sub").mkdir()
    for i, name in enumerate(("a.png", "sub/b.png", "my c.png")):
        picture("color", i)[0].save(tmp_path / name)
    return tmp_path


EXPECTED = [picture("color", i)[1] for i in range(3)]
NAMES = ["a.png", "sub/b.png", "my c.png"]


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_pictures(tmp_path, kind):
    image, expected = picture(kind)
    image.save(tmp_path / "x.png")
    (example,) = datasets.ImageDataset(["x.png"], root=tmp_path)[:]
    assert example.dtype == np.float32
    assert example.flags.c_contiguous
    np.testing.assert_array_equal(example, expected)


def test_dtypes(folder):
    assert datasets.ImageDataset(["a.png"], folder, dtype=np.uint8)[0].dtype == np.uint8
    with mpchain.using_config("dtype", np.float64):
        dataset = datasets.ImageDataset(["a.png"], folder)
    assert dataset[0].dtype == np.float64
    with mpchain.using_config("dtype", mpchain.mixed16):
        assert datasets.ImageDataset(["a.png"], folder)[0].dtype == np.float16


def test_paths_from_a_file(folder):
    (folder / "list.txt").write_text("a.png\n  sub/b.png \n\nmy c.png\n")
    for paths in (folder / "list.txt", str(folder / "list.txt"), NAMES):
        dataset = datasets.ImageDataset(paths, str(folder))
        assert len(dataset) == 3
        np.testing.assert_array_equal(dataset[:], EXPECTED)


def test_labeled_pictures(folder):
    (folder / "list.txt").write_text("a.png 3\n\nsub/b.png\t-1\nmy c.png 0\n")
    pairs = list(zip(NAMES, (3, -1, 0)))
    for source in (folder / "list.txt", str(folder / "list.txt"), pairs):
        dataset = datasets.LabeledImageDataset(source, folder, np.uint8, np.int64)
        assert len(dataset) == 3
        x, t = zip(*dataset[:])
        np.testing.assert_array_equal(x, EXPECTED)
        assert [(label.dtype, label.shape) for label in t] == [(np.int64, ())] * 3
        np.testing.assert_array_equal(t, [3, -1, 0])
    assert datasets.LabeledImageDataset(pairs, folder)[0][1].dtype == np.int32


@pytest.mark.parametrize("line", ["a.png", "a.png cat", "a.png 0.5"])
@pytest.mark.parametrize("kind", ["LabeledImageDataset", "LabeledZippedImageDataset"])
def test_lines_without_a_label(folder, kind, line):
    (folder / "list.txt").write_text(f"a.png 1\n{line}\n")
    message = rf"{kind}: each line of .*list.txt must be a path, a space .* but one is '{line}'"
    arguments = (
        [folder / "list.txt"] if kind == "LabeledImageDataset" else ["z", folder / "list.txt"]
    )
    with pytest.raises(ValueError, match=message):
        getattr(datasets, kind)(*arguments)


def test_files_that_are_no_pictures(folder):
    content = (folder / "a.png").read_bytes()
    (folder / "cut.png").write_bytes(content[:60])
    (folder / "text.png").write_text("hello")
    dataset = datasets.ImageDataset(["cut.png", "text.png", "missing.png"], folder)
    for i, name in enumerate(("cut.png", "text.png")):
        with pytest.raises(ValueError, match=f"{folder}/{name} cannot be read as an image"):
            dataset[i]
    with pytest.raises(FileNotFoundError, match=r"missing\.png"):
        dataset[2]


@pytest.fixture
def archive(folder):
    path = folder / "pictures.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("empty/", "")
        for name in NAMES:
            file.write(folder / name, name)
    return path


def test_zipped_pictures(archive):
    dataset = datasets.ZippedImageDataset(archive, dtype=np.uint8)
    assert len(dataset) == 3
    np.testing.assert_array_equal(dataset[:], EXPECTED)
    assert dataset[0].dtype == np.uint8
    assert datasets.ZippedImageDataset(str(archive))[0].dtype == np.float32
    dataset.close()
    np.testing.assert_array_equal(dataset[1], EXPECTED[1])


def test_several_archives(archive):
    dataset = datasets.MultiZippedImageDataset([archive, str(archive)])
    assert len(dataset) == 6
    np.testing.assert_array_equal(dataset[4], EXPECTED[1])


def test_labeled_zipped_pictures(folder, archive):
    (folder / "list.txt").write_text("my c.png 7\na.png 8\nd.png 9\n")
    dataset = datasets.LabeledZippedImageDataset(archive, folder / "list.txt", label_dtype=np.int8)
    assert len(dataset) == 3
    x, t = dataset[0]
    np.testing.assert_array_equal(x, EXPECTED[2])
    assert (t, t.dtype) == (7, np.int8)
    with pytest.raises(ValueError, match=r"pictures\.zip has no member 'd\.png'"):
        dataset[2]


def test_archives_that_are_none(folder):
    with pytest.raises(
        ValueError, match=f"ZippedImageDataset: {folder}/a.png is not a zip archive"
    ):
        datasets.ZippedImageDataset(folder / "a.png")


def test_an_archive_that_leads_out_is_refused(folder):
    with zipfile.ZipFile(folder / "slip.zip", "w") as file:
        file.write(folder / "a.png", "../a.png")
    with pytest.raises(ValueError, match=r"member '\.\./a\.png' leads out of the archive's folder"):
        datasets.ZippedImageDataset(folder / "slip.zip")


def test_a_damaged_member(archive):
    content = bytearray(archive.read_bytes())
    content[content.index(b"IDAT") + 8] ^= 255
    archive.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{archive}/a\.png cannot be read: Bad CRC-32"):
        datasets.ZippedImageDataset(archive)[0]


def test_copies_that_were_pickled(archive, folder):
    (folder / "list.txt").write_text("a.png 1\n")
    for dataset in (
        datasets.ZippedImageDataset(archive),
        datasets.MultiZippedImageDataset([archive]),
        datasets.ImageDataset(["a.png"], folder),
    ):
        copy = pickle.loads(pickle.dumps(dataset))
        np.testing.assert_array_equal(copy[0], EXPECTED[0])
    copy = pickle.loads(
        pickle.dumps(datasets.LabeledZippedImageDataset(archive, folder / "list.txt"))
    )
    np.testing.assert_array_equal(copy[0][0], EXPECTED[0])


def _is_right(dataset, connection):
    for _ in range(20):
        for i in range(3):
            if not np.array_equal(dataset[i], EXPECTED[i]):
                connection.send(False)
    connection.send(True)


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_processes_that_were_forked_read_at_once(archive):
    dataset = datasets.ZippedImageDataset(archive)
    context = multiprocessing.get_context("fork")
    pairs = [context.Pipe(duplex=False) for _ in range(3)]
    processes = [context.Process(target=_is_right, args=(dataset, send)) for _, send in pairs]
    for process in processes:
        process.start()
    _is_right(dataset, pairs[0][1])
    for process, (receive, _) in zip(processes, pairs):
        assert receive.recv()
        process.join()


def test_threads_read_at_once(archive):
    dataset = datasets.ZippedImageDataset(archive)
    wrong = []

    def read():
        for i in list(range(3)) * 20:
            if not np.array_equal(dataset[i], EXPECTED[i]):
                wrong.append(i)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_without_pillow(tmp_path):
    program = (
        "import sys; sys.modules['PIL'] = None\n"
        "from mpchain.datasets import ImageDataset, ZippedImageDataset\n"
        "for kind in (ImageDataset, ZippedImageDataset):\n"
        "    try: kind('x')\n"
        "    except RuntimeError as error: print(error)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    missing = "Pillow is not installed: pip install 'mpchain[data]'"
    assert done.stdout.splitlines() == [
        f"ImageDataset: {missing}",
        f"ZippedImageDataset: {missing}",
    ]
