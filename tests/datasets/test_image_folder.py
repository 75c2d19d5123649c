import pickle

import numpy as np
import pytest

from mpchain import iterators
from mpchain.datasets import ImageFolderDataset

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def root(tmp_path):
    """Makes folders of two classes; the first has three images in two formats, one in a
    subfolder."""
    places = ["cats/b.png", "cats/a.PNG", "cats/more/c.bmp", "dogs/d.png"]
    for i, place in enumerate(places):
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = "L" if i == 1 else "RGB"
        Image.new(mode, (5, 4), 10 * i if mode == "L" else (10 * i, 0, 0)).save(path)
    (tmp_path / "cats" / "notes.txt").write_text("no picture")
    (tmp_path / "README").write_text("no class")
    return tmp_path


def test_classes_labels_and_pictures(root):
    dataset = ImageFolderDataset(root)
    assert dataset.classes == ["cats", "dogs"]
    assert dataset.labels.tolist() == [0, 0, 0, 1] and dataset.labels.dtype == np.int32
    reds = []
    for image, label in dataset[:]:
        assert image.shape == (3, 4, 5) and image.dtype == np.float32
        assert label.shape == () and label.dtype == np.int32
        reds.append(image[0, 0, 0])
    assert reds == [10, 0, 20, 30]  # the examples are in the order of the paths
    gray = ImageFolderDataset(root, ["dogs", "cats"], color="L", dtype=np.float16)
    assert gray.labels.tolist() == [0, 1, 1, 1]
    assert gray[0][0].shape == (1, 4, 5) and gray[0][0].dtype == np.float16
    assert ImageFolderDataset(root, color=None)[0][0].shape == (1, 4, 5)


def test_the_dataset_is_small_and_can_be_sent(root):
    copy = pickle.loads(pickle.dumps(ImageFolderDataset(root)))
    assert copy[3][1] == 1


def test_workers_decode(root):
    with iterators.MultithreadIterator(
        ImageFolderDataset(root), 4, repeat=False, shuffle=False, n_threads=2
    ) as batches:
        assert [int(label) for _, label in next(batches)] == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("folder", "classes", "message"),
    [
        ("dogs", None, "has no folders of classes"),
        (".", ["cats", "birds"], "there is no folder .*birds"),
        ("cats", None, None),
    ],
)
def test_wrong_folders(root, folder, classes, message):
    if message is None:
        (root / "cats" / "empty").mkdir()
        message = r"empty has no images \(.bmp, .gif"
    with pytest.raises(ValueError, match=message):
        ImageFolderDataset(root / folder, classes)


def test_a_damaged_file_is_named(root):
    (root / "dogs" / "e.png").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"dogs.e.png cannot be read as an image"):
        ImageFolderDataset(root)[4]
