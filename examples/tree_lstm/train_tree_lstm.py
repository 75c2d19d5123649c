"""Classifies the sentiment of phrases with a tree LSTM, which follows the phrases' trees.

    python train_tree_lstm.py                   one process
    mpchain-launch -n 2 train_tree_lstm.py      two ranks, the same numbers

The script generates trees such as ((not good) and (not (really bad))). The value of a tree (-2 to
2) follows from its words by rules: "not" negates a value, "really" doubles a value, "and" adds two
values, and "but" uses only the right side. --file reads your own trees, one per line in the same
form, each after its value and a space.

See K. Tai et al., Improved semantic representations from tree-structured long short-term memory
networks, ACL 2015.
"""

import argparse
import pathlib
import re

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, datasets, iterators, optimizers, serializers, training
from mpchain.distributed import MultiNodeUpdater, create_sharded_iterator
from mpchain.training import extensions

Tree = str | tuple  # a word, (operator, tree), or (tree, operator, tree)

VALUES = {"good": 1, "fine": 1, "bad": -1, "poor": -1, "usual": 0, "new": 0}


def make_tree(random: np.random.RandomState, depth: int) -> tuple[Tree, int]:
    """Returns a tree of at most the given depth, and its value."""
    kind = random.randint(5) if depth else 4
    if kind == 4:
        word = list(VALUES)[random.randint(len(VALUES))]
        return word, VALUES[word]
    left, value = make_tree(random, depth - 1)
    if kind < 2:
        value = -value if kind == 0 else 2 * value
        return (("not", "really")[kind], left), int(np.clip(value, -2, 2))
    right, other = make_tree(random, depth - 1)
    value = other if kind == 2 else value + other
    return (left, ("but", "and")[kind - 2], right), int(np.clip(value, -2, 2))


def parse(text: str) -> Tree:
    """Parses a text with parentheses; returns the tree."""
    stack = [[]]
    for token in re.findall(r"[()]|[^\s()]+", text):
        if token == "(":
            stack.append([])
        elif token == ")":
            done = tuple(stack.pop())
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    return stack[0][0]


def show(tree: Tree) -> str:
    return tree if isinstance(tree, str) else f"({' '.join(map(show, tree))})"


def words_of(tree: Tree) -> set[str]:
    return {tree} if isinstance(tree, str) else set().union(*map(words_of, tree))


class TreeClassifier(mpchain.Chain):
    """A model that combines the states of subtrees, and classifies the state of a whole tree."""

    def __init__(self, words: list[str], n_units: int):
        super().__init__()
        self.numbers = {word: i for i, word in enumerate(words)}
        with self.init_scope():
            self.embed = L.EmbedID(len(words), n_units)
            self.cell = L.ChildSumTreeLSTM(n_units, n_units)
            self.out = L.Linear(n_units, 5)

    def embedded(self, word: str) -> Variable:
        return self.embed(self.xp.array([self.numbers[word]], np.int32))

    def state(self, tree: Tree) -> tuple[Variable, Variable]:
        """Returns memory and output (1, n_units) of a tree.

        The operator is the input of an inner node, and the other subtrees are its children. A left
        child passes through an extra node, so that left and right differ.
        """
        if isinstance(tree, str):
            return self.cell(self.embedded(tree))
        *left, operator, right = tree if len(tree) == 3 else (tree[0], tree[1])
        c, h = self.state(right)
        if not left:
            return self.cell(c, h, self.embedded(operator))
        c_left, h_left = self.state(left[0])
        c_left, h_left = self.cell(c_left, h_left, self.embedded(operator))
        return self.cell(c_left, c, h_left, h, self.embedded(operator))

    def predict(self, trees: list[Tree]) -> Variable:
        """Returns scores (N, 5) of the values -2 to 2."""
        return self.out(F.concat([self.state(tree)[1] for tree in trees], axis=0))

    def forward(self, trees: list[Tree], values: list[int]) -> Variable:
        scores = self.predict(trees)
        t = self.xp.array(values, np.int32) + 2
        loss = F.softmax_cross_entropy(scores, t)
        mpchain.report({"loss": loss, "accuracy": F.accuracy(scores, t)}, self)
        return loss


@mpchain.dataset.converter()
def convert(batch: list, device) -> tuple[list[Tree], list[int]]:
    """Returns lists of trees and of values."""
    return tuple(map(list, zip(*batch))) if batch else ([], [])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", help="values and trees; default: synthetic")
    parser.add_argument("--epoch", type=int, default=8, help="passes over the trees")
    parser.add_argument("--batchsize", type=int, default=25, help="trees in a global batch")
    parser.add_argument("--units", type=int, default=32, help="size of states")
    parser.add_argument("--out", default="result", help="folder of the results")
    parser.add_argument("--resume", help="snapshot to resume from")
    parser.add_argument("--test", action="store_true", help="run a few seconds with few trees")
    args = parser.parse_args()
    if args.test:
        args.epoch, args.batchsize, args.units = 2, 10, 8
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    np.random.seed(0)

    if args.file and not args.test:
        lines = pathlib.Path(args.file).read_text("utf-8").splitlines()
        halves = [line.split(None, 1) for line in lines if line.strip()]
        data = [(parse(tree), int(value)) for value, tree in halves]
    else:
        random = np.random.RandomState(1)
        data = [make_tree(random, depth=3) for _ in range(40 if args.test else 1000)]
    train, test = datasets.split_dataset(data, len(data) * 4 // 5)
    words = sorted(set().union(*(words_of(tree) for tree, _ in data)))
    train_iter = iterators.SerialIterator(train, args.batchsize)
    test_iter = iterators.SerialIterator(test, args.batchsize, repeat=False, shuffle=False)
    train_iter = create_sharded_iterator(train_iter, comm)
    test_iter = create_sharded_iterator(test_iter, comm)

    model = TreeClassifier(words, args.units)
    optimizer = mpchain.create_multi_node_optimizer(optimizers.Adam(alpha=0.01), comm).setup(model)
    updater = MultiNodeUpdater(train_iter, optimizer, comm, converter=convert)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    evaluator = extensions.Evaluator(test_iter, model, converter=convert)
    trainer.extend(mpchain.create_multi_node_evaluator(evaluator, comm))
    columns = ["epoch", "main/loss", "main/accuracy", "validation/main/accuracy"]
    extensions.standard_reports(
        trainer, [*columns, "elapsed_time"], snapshots=(1, "epoch"), arguments=args
    )
    if args.resume:
        serializers.load_npz(args.resume, trainer)
    trainer.run()
    if comm.rank == 0:
        with mpchain.using_config("train", False), mpchain.no_backprop_mode():
            found = model.predict([tree for tree, _ in test[:5]]).array.argmax(axis=1) - 2
        for (tree, value), prediction in zip(test[:5], found):
            print(f"{value:+d} predicted {prediction:+d}  {show(tree)}")


if __name__ == "__main__":
    main()
