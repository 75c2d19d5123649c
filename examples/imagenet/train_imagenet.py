"""Trains ResNet-50 on folders of images.

    python train_imagenet.py FOLDER                       one process
    mpchain-launch -n 8 train_imagenet.py FOLDER --gpu    eight ranks, one GPU for each

FOLDER has the folders train/ and val/, each of which has one folder of images per class. Each rank
reads and decodes its own part of each batch, in threads. All ranks write checkpoints together, and
--resume continues from the latest checkpoint on any number of ranks. --test uses a few small
synthetic images.

See K. He et al., Deep residual learning for image recognition, CVPR 2016; P. Goyal et al.,
Accurate, large minibatch SGD, 2017.
"""

import argparse
import pathlib
import warnings

import numpy as np
from PIL import Image

import mpchain
import mpchain.links as L
from mpchain import Variable, datasets, iterators, optimizer_hooks, optimizers, training
from mpchain.datasets import transforms
from mpchain.distributed import MultiNodeUpdater, create_sharded_iterator
from mpchain.distributed.extensions import AllreducePersistent, checkpoint
from mpchain.training import extensions
from mpchain.typing import Array


class ResNet50(mpchain.Chain):
    """ResNet-50 for any number of classes."""

    def __init__(self, n_classes: int):
        super().__init__()
        with self.init_scope():
            self.base = L.ResNet50Layers(pretrained_model=None)
        del self.base.fc6  # this last layer is only for ImageNet's own 1000 classes
        with self.base.init_scope():
            self.base.fc6 = L.Linear(2048, n_classes)

    def forward(self, x: Array) -> Variable:
        return self.base(x, layers=["fc6"])["fc6"]


def make_up_images(root: pathlib.Path) -> None:
    """Writes some images of noise around one color, for each of two classes."""
    random = np.random.RandomState(0)
    for part in ("train", "val"):
        for name, color in (("red", (200, 40, 40)), ("blue", (40, 40, 200))):
            folder = root / part / name
            folder.mkdir(parents=True, exist_ok=True)
            for i in range(8):
                pixels = np.clip(random.normal(color, 20, (40, 48, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", help="folder that contains train/ and val/")
    parser.add_argument("--size", type=int, default=224, help="height and width in pixels")
    parser.add_argument("--epoch", type=int, default=90, help="passes over the training data")
    parser.add_argument("--batchsize", type=int, default=256, help="images in a global batch")
    parser.add_argument("--threads", type=int, default=4, help="reading threads on each rank")
    parser.add_argument("--gpu", action="store_true", help="compute on GPUs, one for each rank")
    parser.add_argument("--out", default="result", help="folder of the results")
    parser.add_argument("--resume", action="store_true", help="continue from the latest checkpoint")
    parser.add_argument("--test", action="store_true", help="run a few seconds on synthetic images")
    args = parser.parse_args()
    if args.test:
        args.epoch, args.batchsize, args.size, args.threads = 1, 8, 64, 2
        args.folder = pathlib.Path(args.out, "images")
    elif args.folder is None:
        parser.error("name the folder that contains train/ and val/, or --test")
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    device = f"@cupy:{comm.intra_rank}" if args.gpu else "@numpy"
    np.random.seed(0)
    if args.test:
        if comm.rank == 0:
            make_up_images(args.folder)
        comm.barrier()

    folders = [pathlib.Path(args.folder, name) for name in ("train", "val")]
    train, test = map(datasets.ImageFolderDataset, folders)
    n_classes, scaled = len(train.classes), transforms.Normalize(128, 128)
    cut = transforms.RandomResizedCrop(args.size, scale=(0.25, 1))
    middle = transforms.Resize(round(args.size / 0.875)), transforms.CenterCrop(args.size)
    # Random augmentation depends on an image's index and the epoch, not on ranks and threads.
    train = datasets.AugmentedDataset(
        train, transforms.Compose(cut, transforms.RandomFlip(), scaled)
    )
    test = datasets.AugmentedDataset(test, transforms.Compose(*middle, scaled))
    options = {"n_threads": args.threads}
    train_iter = iterators.MultithreadIterator(train, args.batchsize, **options)
    test_iter = iterators.MultithreadIterator(
        test, args.batchsize, repeat=False, shuffle=False, **options
    )
    train_iter = create_sharded_iterator(train_iter, comm)
    test_iter = create_sharded_iterator(test_iter, comm)

    model = L.Classifier(ResNet50(n_classes)).to_device(device)
    if args.test:  # after so few updates, only the latest statistics are useful
        for link in model.links():
            if isinstance(link, L.BatchNormalization):
                link.decay = 0.0
    # The learning rate is proportional to the batch size.
    optimizer = optimizers.CorrectedMomentumSGD(lr=0.1 * args.batchsize / 256)
    optimizer = mpchain.create_multi_node_optimizer(optimizer, comm).setup(model)
    optimizer.add_hook(optimizer_hooks.WeightDecay(1e-4))
    updater = MultiNodeUpdater(train_iter, optimizer, comm, device=device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)

    n_updates = -(-len(train) * args.epoch // args.batchsize)
    trainer.extend(extensions.CosineShift("lr", n_updates, warmup=n_updates // 18))
    # In training, each rank normalizes its own samples, as is usual for ImageNet. In evaluation,
    # all ranks use the same statistics.
    warnings.filterwarnings("ignore", ".*batch_normalization takes the statistics")
    trainer.extend(AllreducePersistent(model, comm))
    evaluator = extensions.Evaluator(test_iter, model, device=device)
    trainer.extend(mpchain.create_multi_node_evaluator(evaluator, comm))
    trainer.extend(checkpoint(comm, autoload=args.resume))
    if comm.rank == 0:
        print(f"{len(train)} images of {n_classes} classes, {comm.size} ranks")
    columns = ["epoch", "main/loss", "main/accuracy"]
    columns += ["validation/main/loss", "validation/main/accuracy", "elapsed_time"]
    extensions.standard_reports(trainer, columns, arguments=args)
    trainer.run()


if __name__ == "__main__":
    main()
