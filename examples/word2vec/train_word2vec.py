"""Learns vectors of words from their neighbors: skip-grams with negative sampling.

    python train_word2vec.py [--text FILE]      one process
    mpchain-launch -n 2 train_word2vec.py       two ranks, the same numbers

Without --text, the script learns Python's own manual, which every Python contains. At the end, it
prints the closest words to some frequent words.

See T. Mikolov et al., Distributed representations of words and phrases and their compositionality,
NeurIPS 2013.
"""

import argparse
import collections
import pathlib
import pydoc_data.topics
import re

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, datasets, iterators, optimizers, serializers, training
from mpchain.distributed import MultiNodeUpdater, create_sharded_iterator
from mpchain.training import extensions
from mpchain.typing import Array


class SkipGram(mpchain.Chain):
    """Learns to give neighbors of a word higher scores than words drawn at random."""

    def __init__(self, counts: Array, n_units: int, n_negative: int):
        super().__init__()
        with self.init_scope():
            uniform = mpchain.initializers.Uniform(1 / n_units)
            self.embed = L.EmbedID(len(counts), n_units, initialW=uniform)
            self.loss = L.NegativeSampling(n_units, counts, n_negative)

    def forward(self, center: Array, neighbor: Array) -> Variable:
        """Returns the loss of pairs of words, each (N,), int32."""
        loss = F.mean(self.loss(self.embed(center), neighbor, reduce="no"))
        mpchain.report({"loss": loss}, self)
        return loss


def read_text(path: str | None) -> str:
    if path:
        return pathlib.Path(path).read_text("utf-8")
    return "\n".join(pydoc_data.topics.topics.values())


def number_words(text: str, n_words: int) -> tuple[Array, list[str], list[int]]:
    """Returns the ids of the frequent words of a text, the words, and how often each occurs."""
    found = re.findall(r"[a-z']+", text.lower())
    counts = dict(collections.Counter(found).most_common(n_words))
    numbers = {word: i for i, word in enumerate(counts)}
    words = [numbers[word] for word in found if word in numbers]
    return np.array(words, np.int32), list(counts), list(counts.values())


def make_pairs(words: Array, counts: list[int], window: int) -> datasets.TupleDataset:
    """Returns all pairs of words at most ``window`` apart; very frequent words are thinned out."""
    frequency = np.array(counts) / sum(counts)
    keep = np.minimum(1, np.sqrt(1e-3 / frequency))
    words = words[np.random.uniform(size=len(words)) < keep[words]]
    centers, neighbors = [], []
    for distance in range(1, window + 1):
        left, right = words[:-distance], words[distance:]
        centers += [left, right]
        neighbors += [right, left]
    return datasets.TupleDataset(np.concatenate(centers), np.concatenate(neighbors))


def show_neighbors(vectors: Array, vocabulary: list[str], n: int) -> None:
    """Prints the closest words to some frequent words."""
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    some = range(min(50, len(vocabulary) // 2), min(300, len(vocabulary)), 25)
    for i in [*some][:n]:
        order = np.argsort(-(vectors @ vectors[i]))
        print(f"{vocabulary[i]:>12}: {', '.join(vocabulary[j] for j in order[1:7])}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", help="a text file; default: Python's manual")
    parser.add_argument("--epoch", type=int, default=5, help="passes over the pairs")
    parser.add_argument("--batchsize", type=int, default=1000, help="pairs in a global batch")
    parser.add_argument("--vocabulary", type=int, default=3000, help="size of the vocabulary")
    parser.add_argument("--units", type=int, default=100, help="size of the vectors")
    parser.add_argument("--window", type=int, default=4, help="largest distance of neighbors")
    parser.add_argument("--negative", type=int, default=5, help="random words for each pair")
    parser.add_argument("--gpu", action="store_true", help="compute on GPUs, one for each rank")
    parser.add_argument("--out", default="result", help="folder of the results")
    parser.add_argument("--resume", help="snapshot to resume from")
    parser.add_argument("--test", action="store_true", help="run a few seconds with a short text")
    args = parser.parse_args()
    if args.test:
        args.epoch, args.batchsize, args.units = 2, 100, 8
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    device = f"@cupy:{comm.intra_rank}" if args.gpu else "@numpy"
    np.random.seed(0)

    text = "to be or not to be that is the question " * 40 if args.test else read_text(args.text)
    words, vocabulary, counts = number_words(text, args.vocabulary)
    pairs = make_pairs(words, counts, args.window)
    batches = create_sharded_iterator(iterators.SerialIterator(pairs, args.batchsize), comm)

    model = SkipGram(counts, args.units, args.negative).to_device(device)
    optimizer = mpchain.create_multi_node_optimizer(optimizers.Adam(alpha=2e-3), comm).setup(model)
    updater = MultiNodeUpdater(batches, optimizer, comm, device=device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    if comm.rank == 0:
        print(f"{len(words)} words, {len(vocabulary)} different, {len(pairs)} pairs")
    extensions.standard_reports(
        trainer, ["epoch", "main/loss", "elapsed_time"], snapshots=(1, "epoch"), arguments=args
    )
    if args.resume:
        serializers.load_npz(args.resume, trainer)
    trainer.run()
    if comm.rank == 0:
        vectors = mpchain.backends.cuda.to_cpu(model.embed.W.array)
        show_neighbors(vectors, vocabulary, n=10)
        np.savez(f"{args.out}/vectors.npz", vectors=vectors, words=vocabulary)


if __name__ == "__main__":
    main()
