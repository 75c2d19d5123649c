"""Trains a small GPT on text, character by character, and lets it write.

    python train_gpt.py [--text FILE]           one process
    mpchain-launch -n 2 train_gpt.py            two ranks, the same numbers

Without --text, the script learns Python's own manual, which every Python contains.
"""

import argparse
import math
import pathlib
import pydoc_data.topics

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
from mpchain.dataset import DatasetMixin
from mpchain.distributed import MultiNodeUpdater, create_sharded_iterator
from mpchain.training import extensions
from mpchain.typing import Array


class GPT(mpchain.Chain):
    """A stack of transformer layers; each position attends to itself and earlier positions."""

    def __init__(self, n_characters: int, length: int, size: int, n_layers: int, n_heads: int):
        super().__init__()
        small = mpchain.initializers.Normal(0.02)
        layers = [
            L.TransformerEncoderLayer(size, n_heads, dropout=0.1, activation=F.gelu, pre_norm=True)
            for _ in range(n_layers)
        ]
        self.length = length
        with self.init_scope():
            self.character = L.EmbedID(n_characters, size, initialW=small)
            self.position = L.EmbedID(length, size, initialW=small)
            self.layers = mpchain.ChainList(*layers)
            self.norm = L.LayerNormalization(size)
            self.head = L.Linear(size, n_characters, initialW=small)

    def predict(self, x: Array) -> Variable:
        """Returns scores (B, T, n_characters) of the characters that follow x (B, T), int32."""
        n, length = x.shape
        h = self.character(x) + self.position(self.xp.arange(length, dtype=np.int32))
        h = F.dropout(h, 0.1)
        for layer in self.layers:
            h = layer(h, is_causal=True)
        h = F.reshape(h, (n * length, -1))
        return F.reshape(self.head(self.norm(h)), (n, length, -1))

    def forward(self, x: Array, t: Array) -> Variable:
        scores = self.predict(x)
        loss = F.softmax_cross_entropy(F.reshape(scores, (t.size, -1)), t.ravel())
        mpchain.report({"loss": loss}, self)
        return loss

    def write(self, start: Array, n: int, temperature: float) -> Array:
        """Returns the numbers of ``n`` characters that continue ``start``, drawn one by one."""
        characters = list(start)
        with mpchain.using_config("train", False), mpchain.no_backprop_mode():
            for _ in range(n):
                x = self.xp.asarray([characters[-self.length :]], np.int32)
                p = F.softmax(self.predict(x)[0, -1:] / temperature).array[0]
                p = mpchain.backends.cuda.to_cpu(p).astype(np.float64)
                characters.append(np.random.choice(len(p), p=p / p.sum()))
        return np.array(characters[len(start) :])


class Pieces(DatasetMixin):
    """A dataset of pieces of a text: an example is two int32 arrays (length,), the characters of a
    piece and the characters that follow each of them."""

    def __init__(self, characters: Array, length: int):
        self.characters, self.length = characters, length

    def __len__(self) -> int:
        return (len(self.characters) - 1) // self.length

    def get_example(self, i: int) -> tuple[Array, Array]:
        piece = self.characters[i * self.length : (i + 1) * self.length + 1]
        return piece[:-1], piece[1:]


def read_text(path: str | None) -> str:
    if path:
        return pathlib.Path(path).read_text("utf-8")
    return "\n".join(pydoc_data.topics.topics.values())


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", help="a text file; default: Python's manual")
    parser.add_argument("--iteration", type=int, default=2000, help="number of updates")
    parser.add_argument("--batchsize", type=int, default=32, help="pieces in a global batch")
    parser.add_argument("--length", type=int, default=64, help="characters of a piece")
    parser.add_argument("--size", type=int, default=96, help="size of the vectors")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=2e-3, help="largest learning rate")
    parser.add_argument("--temperature", type=float, default=0.8, help="low: likely characters")
    parser.add_argument("--gpu", action="store_true", help="compute on GPUs, one for each rank")
    parser.add_argument("--out", default="result", help="folder of the results")
    parser.add_argument("--resume", help="snapshot to resume from")
    parser.add_argument("--test", action="store_true", help="run a few seconds with a short text")
    args = parser.parse_args()
    if args.test:
        args.iteration, args.batchsize, args.length, args.size, args.layers = 6, 4, 16, 16, 1
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    device = f"@cupy:{comm.intra_rank}" if args.gpu else "@numpy"
    np.random.seed(0)

    text = "To be, or not to be, that is the question. " * 40 if args.test else read_text(args.text)
    alphabet, characters = np.unique(list(text), return_inverse=True)
    pieces = Pieces(characters.astype(np.int32), args.length)
    # The end of the text is used for validation, for which a few pieces are enough.
    train, rest = datasets.split_dataset(pieces, len(pieces) * 9 // 10)
    test = rest[: 10 * args.batchsize]
    train_iter = iterators.SerialIterator(train, args.batchsize)
    test_iter = iterators.SerialIterator(test, args.batchsize, repeat=False, shuffle=False)
    train_iter = create_sharded_iterator(train_iter, comm)
    test_iter = create_sharded_iterator(test_iter, comm)

    model = GPT(len(alphabet), args.length, args.size, args.layers, args.heads).to_device(device)
    # AdamW multiplies the weight decay by eta, like the whole step, but not by alpha.
    decay = 0.1 * args.lr
    optimizer = optimizers.AdamW(alpha=args.lr, beta2=0.95, weight_decay_rate=decay)
    optimizer = mpchain.create_multi_node_optimizer(optimizer, comm).setup(model)
    optimizer.add_hook(optimizer_hooks.GradientClipping(1.0))
    updater = MultiNodeUpdater(train_iter, optimizer, comm, device=device)
    trainer = training.Trainer(updater, (args.iteration, "iteration"), out=args.out)

    now_and_then = (max(1, args.iteration // 20), "iteration")
    warmup = math.ceil(args.iteration / 20)
    trainer.extend(extensions.CosineShift("eta", args.iteration, warmup=warmup))
    evaluator = extensions.Evaluator(test_iter, model, device=device)
    trainer.extend(mpchain.create_multi_node_evaluator(evaluator, comm), trigger=now_and_then)
    if comm.rank == 0:
        print(
            f"{len(text)} characters, {len(alphabet)} different, {model.count_params()} parameters"
        )
    columns = ["iteration", "main/loss", "validation/main/loss", "elapsed_time"]
    extensions.standard_reports(
        trainer, columns, trigger=now_and_then, snapshots=now_and_then, arguments=args
    )
    if args.resume:
        serializers.load_npz(args.resume, trainer)
    trainer.run()
    if comm.rank == 0:
        start = characters[-args.length :]
        n = 20 if args.test else 500
        print("".join(alphabet[model.write(start, n, args.temperature)]))


if __name__ == "__main__":
    main()
