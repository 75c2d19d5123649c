"""Classifies texts by the mean of their words, by convolutions, or by a bidirectional LSTM.

    python train_text.py --model rnn            one process; also: --model bag, --model cnn
    mpchain-launch -n 2 train_text.py           two ranks, the same numbers

The texts come from a file (--file) with a class, a tab and a text on each line; without --file, the
script generates sentences. A tenth of the texts, drawn at random, is for validation.

See Y. Kim, Convolutional neural networks for sentence classification, EMNLP 2014.
"""

import argparse
import collections
import pathlib
import re

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, datasets, iterators, optimizers, serializers, training
from mpchain.dataset import concat_examples
from mpchain.distributed import MultiNodeUpdater, create_sharded_iterator
from mpchain.training import extensions
from mpchain.typing import Array

PADDING = -1  # the id of padding; the id of unknown words is 0


class Words(mpchain.Chain):
    """A link that returns a vector for each word of texts (N, length); padding has the vector 0."""

    def __init__(self, n_words: int, n_units: int):
        super().__init__()
        with self.init_scope():
            normal = mpchain.initializers.Normal(0.1)
            self.embed = L.EmbedID(n_words, n_units, initialW=normal, ignore_label=PADDING)

    def forward(self, x: Array) -> Variable:
        """Returns (N, length, n_units); in training, a third of the elements are dropped."""
        return F.dropout(self.embed(x), 0.33)


class Bag(mpchain.Chain):
    """A classifier that uses the mean of the words' vectors, without their order."""

    def __init__(self, n_words: int, n_units: int, n_classes: int):
        super().__init__()
        with self.init_scope():
            self.words = Words(n_words, n_units)
            self.out = L.Linear(n_units, n_classes)

    def forward(self, x: Array) -> Variable:
        n = self.xp.maximum((x != PADDING).sum(axis=1, keepdims=True), 1)
        return self.out(F.sum(self.words(x), axis=1) / n.astype(np.float32))


class CNN(mpchain.Chain):
    """A classifier with convolutions over three to five words and the maximum of each filter."""

    def __init__(self, n_words: int, n_units: int, n_classes: int):
        super().__init__()
        with self.init_scope():
            self.words = Words(n_words, n_units)
            self.filters = mpchain.ChainList(
                *(L.Convolution1D(n_units, n_units, ksize, pad=ksize - 1) for ksize in (3, 4, 5))
            )
            self.out = L.Linear(3 * n_units, n_classes)

    def forward(self, x: Array) -> Variable:
        h = F.transpose(self.words(x), (0, 2, 1))
        h = F.concat([F.max(F.relu(convolution(h)), axis=2) for convolution in self.filters])
        return self.out(F.dropout(h, 0.5))


class RNN(mpchain.Chain):
    """A classifier of the last states of two LSTMs, which read a text forward and backward."""

    def __init__(self, n_words: int, n_units: int, n_classes: int):
        super().__init__()
        with self.init_scope():
            self.words = Words(n_words, n_units)
            self.lstm = L.NStepBiLSTM(1, n_units, n_units, dropout=0)
            self.out = L.Linear(2 * n_units, n_classes)

    def forward(self, x: Array) -> Variable:
        lengths = (x != PADDING).sum(axis=1)
        h, _, _ = self.lstm(None, None, [y[: int(n)] for y, n in zip(self.words(x), lengths)])
        return self.out(F.dropout(F.concat(tuple(h)), 0.5))


MODELS = {"bag": Bag, "cnn": CNN, "rnn": RNN}


def read_texts(path: str | None, made_up: bool) -> list[tuple[str, str]]:
    """Returns pairs of class and text."""
    if path:
        lines = pathlib.Path(path).read_text("utf-8").splitlines()
        return [tuple(line.split("\t", 1)) for line in lines if "\t" in line]
    return make_up_texts(200 if made_up else 2000)


def make_up_texts(n: int) -> list[tuple[str, str]]:
    """Returns pairs of a class and a short opinion, in which "not" negates the next word."""
    random = np.random.RandomState(0)
    pairs = []
    for _ in range(n):
        good, negated = random.randint(2), random.randint(2)
        word = random.choice(["good", "fine", "great"] if good else ["bad", "poor", "dull"])
        noun, length = random.choice(["play", "scene"]), random.choice(["long", "short"])
        text = f"the {noun} was {'not ' * negated}{word} but it was {length}"
        pairs.append(("for" if good != negated else "against", text))
    return pairs


def number_words(texts: list[str], n_words: int, length: int) -> Array:
    """Returns the ids of the first words of each text, (N, up to length), int32."""
    split = [re.findall(r"[a-z']+", text.lower())[:length] for text in texts]
    vocabulary = datasets.Vocabulary.build(split, n_words)
    return concat_examples([vocabulary.encode(words) for words in split], padding=PADDING)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", help="lines of class, tab and text; default: synthetic texts")
    parser.add_argument("--model", choices=MODELS, default="cnn")
    parser.add_argument("--epoch", type=int, default=8, help="passes over the training texts")
    parser.add_argument("--batchsize", type=int, default=50, help="texts in a global batch")
    parser.add_argument("--vocabulary", type=int, default=5000, help="size of the vocabulary")
    parser.add_argument("--length", type=int, default=50, help="words of a text that are read")
    parser.add_argument("--units", type=int, default=64, help="size of vectors and states")
    parser.add_argument("--gpu", action="store_true", help="compute on GPUs, one for each rank")
    parser.add_argument("--out", default="result", help="folder of the results")
    parser.add_argument("--resume", help="snapshot to resume from")
    parser.add_argument("--test", action="store_true", help="run a few seconds on synthetic texts")
    args = parser.parse_args()
    if args.test:
        args.epoch, args.batchsize, args.units, args.length = 2, 20, 8, 12
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    device = f"@cupy:{comm.intra_rank}" if args.gpu else "@numpy"
    np.random.seed(0)

    kinds, texts = zip(*read_texts(args.file, args.test))
    classes, labels = np.unique(kinds, return_inverse=True)
    x = number_words(texts, args.vocabulary, args.length)
    order = np.random.permutation(len(texts))
    data = datasets.TupleDataset(x[order], labels[order].astype(np.int32))
    train, test = datasets.split_dataset(data, len(data) * 9 // 10)
    train_iter = iterators.SerialIterator(train, args.batchsize)
    test_iter = iterators.SerialIterator(test, 100, repeat=False, shuffle=False)
    train_iter = create_sharded_iterator(train_iter, comm)
    test_iter = create_sharded_iterator(test_iter, comm)

    network = MODELS[args.model](int(x.max()) + 1, args.units, len(classes))
    model = L.Classifier(network).to_device(device)
    optimizer = mpchain.create_multi_node_optimizer(optimizers.Adam(), comm).setup(model)
    updater = MultiNodeUpdater(train_iter, optimizer, comm, device=device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    evaluator = extensions.Evaluator(test_iter, model, device=device)
    trainer.extend(mpchain.create_multi_node_evaluator(evaluator, comm))
    if comm.rank == 0:
        counts = ", ".join(f"{n} {kind}" for kind, n in collections.Counter(kinds).items())
        print(f"{len(texts)} texts: {counts}; {x.max() + 1} different words")
    columns = ["epoch", "main/loss", "main/accuracy"]
    columns += ["validation/main/loss", "validation/main/accuracy"]
    extensions.standard_reports(trainer, columns, snapshots=(1, "epoch"), arguments=args)
    if args.resume:
        serializers.load_npz(args.resume, trainer)
    trainer.run()

    with mpchain.using_config("train", False), mpchain.no_backprop_mode():
        some = order[-5:]
        p = F.softmax(network(model.xp.asarray(x[some]))).array
    if comm.rank == 0:
        for i, shares in zip(some, mpchain.backends.cuda.to_cpu(p)):
            guess, text = classes[shares.argmax()], " ".join(texts[i].split())[:60]
            print(f"{kinds[i]:10} predicted {guess:10} {shares.max():4.0%}  {text}")


if __name__ == "__main__":
    main()
