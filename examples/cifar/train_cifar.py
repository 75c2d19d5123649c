"""Trains a VGG-like network or ResNet-18 on small color images in ten classes.

    python train_cifar.py                            one process
    mpchain-launch -n 2 train_cifar.py --model resnet18

CIFAR-10 is downloaded (170 MB) at the first run; --test uses synthetic images. Batch normalization
uses the statistics of the batches of all ranks, so that N ranks compute the same as one process;
only the random crops and flips (--no-augmentation) depend on the number of ranks.
"""

import argparse

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import (
    Variable,
    datasets,
    iterators,
    optimizer_hooks,
    optimizers,
    serializers,
    training,
)
from mpchain.distributed import MultiNodeUpdater, create_sharded_iterator
from mpchain.distributed.links import create_mnbn_model
from mpchain.training import extensions
from mpchain.typing import Array


class ConvolutionAndNorm(mpchain.Chain):
    """A convolution and batch normalization, without an activation."""

    def __init__(self, n_in: int, n_out: int, stride: int = 1, ksize: int = 3):
        super().__init__()
        initial = mpchain.initializers.HeNormal()
        with self.init_scope():
            self.conv = L.Convolution2D(
                n_in, n_out, ksize, stride, ksize // 2, nobias=True, initialW=initial
            )
            self.norm = L.BatchNormalization(n_out)

    def forward(self, x: Variable) -> Variable:
        return self.norm(self.conv(x))


class VGG(mpchain.ChainList):
    """A network of pairs of convolutions, each followed by pooling, and of two affine layers."""

    def __init__(self, width: int, n_classes: int):
        super().__init__()
        n_in = 3
        for n_out in (width, 2 * width, 4 * width):
            self.append(ConvolutionAndNorm(n_in, n_out))
            self.append(ConvolutionAndNorm(n_out, n_out))
            n_in = n_out
        self.append(L.Linear(None, 8 * width))
        self.append(L.Linear(8 * width, n_classes))

    def forward(self, x: Array) -> Variable:
        *convolutions, hidden, last = self
        for i, convolution in enumerate(convolutions):
            x = F.relu(convolution(x))
            if i % 2 == 1:
                x = F.dropout(F.max_pooling_2d(x, 2), 0.25)
        return last(F.dropout(F.relu(hidden(x)), 0.5))


class ResidualBlock(mpchain.Chain):
    """Two convolutions, whose result is added to the input."""

    def __init__(self, n_in: int, n_out: int, stride: int):
        super().__init__()
        with self.init_scope():
            self.conv1 = ConvolutionAndNorm(n_in, n_out, stride)
            self.conv2 = ConvolutionAndNorm(n_out, n_out)
            if n_in == n_out:
                self.shortcut = F.identity
            else:
                self.shortcut = ConvolutionAndNorm(n_in, n_out, stride, ksize=1)

    def forward(self, x: Variable) -> Variable:
        h = self.conv2(F.relu(self.conv1(x)))
        return F.relu(h + self.shortcut(x))


class ResNet18(mpchain.Chain):
    """Eight residual blocks, for images of 32x32 pixels."""

    def __init__(self, width: int, n_classes: int):
        super().__init__()
        blocks, n_in = mpchain.Sequential(), width
        for stage in range(4):
            for first in (True, False):
                n_out = width * 2**stage
                blocks.append(ResidualBlock(n_in, n_out, stride=2 if first and stage else 1))
                n_in = n_out
        with self.init_scope():
            self.first = ConvolutionAndNorm(3, width)
            self.blocks = blocks
            self.last = L.Linear(n_in, n_classes)

    def forward(self, x: Array) -> Variable:
        h = self.blocks(F.relu(self.first(x)))
        return self.last(F.mean(h, axis=(2, 3)))


MODELS = {"vgg": VGG, "resnet18": ResNet18}


def augment(example: tuple[Array, Array]) -> tuple[Array, Array]:
    """Shifts an image by up to four pixels, and mirrors it with probability one half."""
    image, label = example
    height, width = image.shape[1:]
    padded = np.pad(image, ((0, 0), (4, 4), (4, 4)))
    top, left = np.random.randint(0, 9, 2)
    image = padded[:, top : top + height, left : left + width]
    return (image[:, :, ::-1] if np.random.randint(2) else image), label


def make_up_images(n: int, seed: int) -> datasets.TupleDataset:
    """Returns images of 8x8 pixels: noise around one color for each of ten classes."""
    random = np.random.RandomState(seed)
    labels = np.arange(n, dtype=np.int32) % 10
    colors = np.random.RandomState(0).uniform(0, 1, (10, 3, 1, 1))
    images = colors[labels] + random.normal(0, 0.1, (n, 3, 8, 8))
    return datasets.TupleDataset(images.astype(np.float32), labels)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="vgg")
    parser.add_argument("--width", type=int, default=64, help="channels of the first convolution")
    parser.add_argument("--epoch", type=int, default=30, help="passes over the training data")
    parser.add_argument("--batchsize", type=int, default=128, help="images in a global batch")
    parser.add_argument("--lr", type=float, default=0.05, help="largest learning rate")
    parser.add_argument("--no-augmentation", action="store_true", help="no shifts and mirroring")
    parser.add_argument("--gpu", action="store_true", help="compute on GPUs, one for each rank")
    parser.add_argument("--out", default="result", help="folder of the results")
    parser.add_argument("--resume", help="snapshot to resume from")
    parser.add_argument("--test", action="store_true", help="run a few seconds on synthetic data")
    args = parser.parse_args()
    if args.test:
        args.epoch, args.batchsize, args.width, args.no_augmentation = 2, 20, 4, True
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    device = f"@cupy:{comm.intra_rank}" if args.gpu else "@numpy"
    np.random.seed(0)

    if args.test:
        train, test = make_up_images(60, seed=1), make_up_images(40, seed=2)
    else:
        train, test = datasets.get_cifar10()
    if not args.no_augmentation:
        train = datasets.TransformDataset(train, augment)
    train_iter = iterators.SerialIterator(train, args.batchsize)
    test_iter = iterators.SerialIterator(test, args.batchsize, repeat=False, shuffle=False)
    train_iter = create_sharded_iterator(train_iter, comm)
    test_iter = create_sharded_iterator(test_iter, comm)

    network = create_mnbn_model(MODELS[args.model](args.width, n_classes=10), comm)
    model = L.Classifier(network).to_device(device)
    optimizer = optimizers.MomentumSGD(lr=args.lr)
    optimizer = mpchain.create_multi_node_optimizer(optimizer, comm).setup(model)
    optimizer.add_hook(optimizer_hooks.WeightDecay(5e-4))
    updater = MultiNodeUpdater(train_iter, optimizer, comm, device=device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)

    n_updates = args.epoch * len(train) // args.batchsize
    trainer.extend(extensions.CosineShift("lr", n_updates, warmup=n_updates // 20))
    evaluator = extensions.Evaluator(test_iter, model, device=device)
    trainer.extend(mpchain.create_multi_node_evaluator(evaluator, comm))
    columns = ["epoch", "main/loss", "main/accuracy"]
    columns += ["validation/main/loss", "validation/main/accuracy", "elapsed_time"]
    extensions.standard_reports(trainer, columns, snapshots=(1, "epoch"), arguments=args)
    if args.resume:
        serializers.load_npz(args.resume, trainer)
    trainer.run()


if __name__ == "__main__":
    main()
