"""Iterators, files, and the start of a program."""

import os
import subprocess
import sys
import tempfile

import numpy as np

FOLDER = tempfile.mkdtemp()
PATH = os.path.join(FOLDER, "model")


def augmented(image):
    """Returns an image after a random shift by up to four pixels; half of the images are
    mirrored."""
    top, left = np.random.randint(0, 9, 2)
    padded = np.pad(image, 4)
    cut = padded[top : top + 28, left : left + 28]
    return cut[:, ::-1].copy() if np.random.randint(2) else cut.copy()


class Images:
    """A dataset of ``n`` images, which a function may change when they are read."""

    def __init__(self, n, change=None):
        self.images = np.random.RandomState(0).rand(n, 28, 28).astype("f")
        self.labels = np.zeros(n, "i")
        self.change = change

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = self.images[i]
        return (image if self.change is None else self.change(image)), self.labels[i]


def _epoch_ours(lib, iterator):
    def step():
        for batch in iterator:
            lib.dataset.concat_examples(batch)
        iterator.reset()

    return step


def _epoch_pytorch(loader):
    def step():
        for _ in loader:
            pass

    return step


def serial_iterator_ours(lib):
    images = Images(60000)
    data = lib.datasets.TupleDataset(images.images, images.labels)
    return _epoch_ours(lib, lib.iterators.SerialIterator(data, 100, repeat=False))


def serial_iterator_pytorch(torch):
    images = Images(60000)
    data = torch.utils.data.TensorDataset(
        torch.from_numpy(images.images), torch.from_numpy(images.labels)
    )
    return _epoch_pytorch(torch.utils.data.DataLoader(data, 100, shuffle=True))


def worker_processes_ours(lib):
    iterator = lib.iterators.MultiprocessIterator(
        Images(20000, augmented), 100, repeat=False, n_processes=2
    )
    return _epoch_ours(lib, iterator)


def worker_processes_pytorch(torch):
    loader = torch.utils.data.DataLoader(
        Images(20000, augmented), 100, shuffle=True, num_workers=2, persistent_workers=True
    )
    return _epoch_pytorch(loader)


def _import(name):
    return lambda: subprocess.run([sys.executable, "-c", f"import {name}"], check=True) and None


def import_ours(lib):
    return _import(lib.__name__)


def import_pytorch(torch):
    return _import("torch")


def _model_ours(lib):
    return lib.ChainList(*(lib.links.Linear(1000, 1000) for _ in range(25)))


def _model_pytorch(torch):
    return torch.nn.ModuleList(torch.nn.Linear(1000, 1000) for _ in range(25))


def saving_ours(lib):
    model = _model_ours(lib)
    return lambda: lib.serializers.save_npz(PATH, model, compression=False)


def saving_pytorch(torch):
    model = _model_pytorch(torch)
    return lambda: torch.save(model.state_dict(), PATH)


def loading_ours(lib):
    model = _model_ours(lib)
    lib.serializers.save_npz(PATH, model, compression=False)
    return lambda: lib.serializers.load_npz(PATH, model)


def loading_pytorch(torch):
    model = _model_pytorch(torch)
    torch.save(model.state_dict(), PATH)
    return lambda: model.load_state_dict(torch.load(PATH, weights_only=True)) and None
