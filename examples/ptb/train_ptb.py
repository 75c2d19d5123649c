"""Trains a recurrent model of words by truncated backpropagation through time, and lets it write.

    python train_ptb.py [--text FILE]           one process
    mpchain-launch -n 2 train_ptb.py            two ranks, the same numbers

Without --text, the script learns Python's own manual, which every Python contains. The text is cut
into as many strips as a batch has rows, and the strips are read side by side; each rank reads its
part of the strips.
"""

import argparse
import pathlib
import pydoc_data.topics
import re

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, datasets, optimizer_hooks, optimizers, serializers, training
from mpchain.dataset import Iterator
from mpchain.distributed.extensions import ObservationAggregator
from mpchain.serializer import AbstractSerializer
from mpchain.training import extensions
from mpchain.typing import Array


class LanguageModel(mpchain.Chain):
    """Two layers of LSTM, which remember the words that they have read."""

    def __init__(self, n_words: int, n_units: int):
        super().__init__()
        with self.init_scope():
            self.embed = L.EmbedID(n_words, n_units)
            self.lstm1 = L.LSTM(n_units, n_units)
            self.lstm2 = L.LSTM(n_units, n_units)
            self.out = L.Linear(n_units, n_words)

    def reset_state(self) -> None:
        self.lstm1.reset_state()
        self.lstm2.reset_state()

    def forward(self, x: Array) -> Variable:
        """Returns scores (N, n_words) of the words that follow x (N,), int32."""
        h = self.lstm1(F.dropout(self.embed(x), 0.3))
        h = self.lstm2(F.dropout(h, 0.3))
        return self.out(F.dropout(h, 0.3))


class Strips(Iterator):
    """Yields the next words (length, n_strips) in strips of a text, and the words after each."""

    def __init__(self, words: Array, n_strips: int, length: int):
        n = (len(words) - 1) // n_strips
        self.x = words[: n * n_strips].reshape(n_strips, n).T
        self.t = words[1 : n * n_strips + 1].reshape(n_strips, n).T
        self.length = length
        self.n_batches = n // length
        self.iteration = 0

    def __next__(self) -> tuple[Array, Array]:
        i = self.iteration % self.n_batches * self.length
        self.iteration += 1
        return self.x[i : i + self.length], self.t[i : i + self.length]

    @property
    def epoch(self) -> int:
        return self.iteration // self.n_batches

    @property
    def epoch_detail(self) -> float:
        return self.iteration / self.n_batches

    @property
    def previous_epoch_detail(self) -> float:
        return max(0, self.iteration - 1) / self.n_batches

    @property
    def is_new_epoch(self) -> bool:
        return self.iteration > 0 and self.iteration % self.n_batches == 0

    def serialize(self, serializer: AbstractSerializer) -> None:
        self.iteration = serializer("iteration", self.iteration)


def mean_loss(model: LanguageModel, x: Array, t: Array) -> Variable:
    """Returns the mean loss of words t (length, N) that follow x (length, N)."""
    return sum(F.softmax_cross_entropy(model(x_i), t_i) for x_i, t_i in zip(x, t)) / len(x)


class BpttUpdater(training.updaters.StandardUpdater):
    """Continues with the state of the previous batch; gradients do not flow through this state."""

    def __init__(self, iterator, optimizer, comm, device):
        super().__init__(iterator, optimizer, device=device)
        self.comm = comm

    def update_core(self) -> None:
        iterator, optimizer = self.get_iterator("main"), self.get_optimizer("main")
        model = optimizer.target
        if iterator.is_new_epoch:
            model.reset_state()  # the strips begin again, so the state is reset
        x, t = next(iterator)
        for lstm in (model.lstm1, model.lstm2):
            if lstm.h is not None:
                lstm.set_state(lstm.c.array, lstm.h.array)
        with self.comm.batch(x.shape[1]) as mine:
            x, t = self.device.send((x[:, mine], t[:, mine]))
            optimizer.update(self.loss, x, t)

    def loss(self, x: Array, t: Array) -> Variable:
        model = self.get_optimizer("main").target
        loss = mean_loss(model, x, t)
        mpchain.report({"loss": loss}, model)
        return loss


def evaluate(model: LanguageModel, strips: Strips) -> float:
    """Returns the mean loss over strips, read by a copy of the model from the beginning."""
    copy = model.copy()
    copy.reset_state()
    with mpchain.using_config("train", False), mpchain.no_backprop_mode():
        batches = [copy.device.send(next(strips)) for _ in range(strips.n_batches)]
        return float(np.mean([mean_loss(copy, *batch).item() for batch in batches]))


def write(model: LanguageModel, vocabulary: Array, first: int, n: int) -> str:
    """Returns the word ``first`` and ``n`` words that continue it, drawn one by one."""
    model.reset_state()
    words = [first]
    with mpchain.using_config("train", False), mpchain.no_backprop_mode():
        for _ in range(n):
            scores = model(model.xp.asarray(words[-1:], np.int32))
            p = mpchain.backends.cuda.to_cpu(F.softmax(scores).array[0]).astype(np.float64)
            p[0] = 0  # the token that stands for rare words
            words.append(np.random.choice(len(p), p=p / p.sum()))
    return " ".join(vocabulary[word] for word in words)


def read_text(path: str | None) -> str:
    if path:
        return pathlib.Path(path).read_text("utf-8")
    return "\n".join(pydoc_data.topics.topics.values())


def number_words(text: str, n_words: int) -> tuple[Array, list[str]]:
    """Returns the ids of a text's words, and the vocabulary; id 0 stands for rare words."""
    found = re.findall(r"[a-z']+|[.,;:!?]", text.lower())
    vocabulary = datasets.Vocabulary.build([found], n_words, specials=["<rare>"], unknown="<rare>")
    return vocabulary.encode(found), vocabulary.words


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", help="a text file; default: Python's manual")
    parser.add_argument("--epoch", type=int, default=8, help="passes over the text")
    parser.add_argument("--batchsize", type=int, default=32, help="strips of the text")
    parser.add_argument("--length", type=int, default=20, help="words between truncations")
    parser.add_argument("--vocabulary", type=int, default=2000, help="size of the vocabulary")
    parser.add_argument("--units", type=int, default=128, help="units of each layer")
    parser.add_argument("--gpu", action="store_true", help="compute on GPUs, one for each rank")
    parser.add_argument("--out", default="result", help="folder of the results")
    parser.add_argument("--resume", help="snapshot to resume from")
    parser.add_argument("--test", action="store_true", help="run a few seconds with a short text")
    args = parser.parse_args()
    if args.test:
        args.epoch, args.batchsize, args.length, args.units = 2, 4, 5, 8
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    device = f"@cupy:{comm.intra_rank}" if args.gpu else "@numpy"
    np.random.seed(0)

    text = "To be, or not to be, that is the question. " * 20 if args.test else read_text(args.text)
    words, vocabulary = number_words(text, args.vocabulary)
    n_train = len(words) * 9 // 10
    batches = Strips(words[:n_train], args.batchsize, args.length)

    model = LanguageModel(len(vocabulary), args.units).to_device(device)
    optimizer = mpchain.create_multi_node_optimizer(optimizers.Adam(alpha=2e-3), comm).setup(model)
    optimizer.add_hook(optimizer_hooks.GradientClipping(5.0))
    updater = BpttUpdater(batches, optimizer, comm, device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    trainer.extend(ObservationAggregator(comm, "main/loss"))

    @training.make_extension(trigger=(1, "epoch"), priority=training.PRIORITY_WRITER)
    def report_perplexity(trainer: training.Trainer) -> None:
        loss = evaluate(model, Strips(words[n_train:], args.batchsize, args.length))
        mpchain.report({"perplexity": np.exp(loss)})

    if comm.rank == 0:
        trainer.extend(report_perplexity)
        print(f"{len(words)} words, {len(vocabulary)} different")
    extensions.standard_reports(
        trainer,
        ["epoch", "main/loss", "perplexity", "elapsed_time"],
        snapshots=(1, "epoch"),
        arguments=args,
    )
    if args.resume:
        serializers.load_npz(args.resume, trainer)
    trainer.run()
    if comm.rank == 0:
        print(write(model, vocabulary, words[0], n=10 if args.test else 60))


if __name__ == "__main__":
    main()
