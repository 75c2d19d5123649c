"""Translates numbers to English words with attention, and measures BLEU.

    python train_seq2seq.py                     one process
    mpchain-launch -n 2 train_seq2seq.py        two ranks, the same losses

A pair is the digits of a random number below a million, and the number's words. The network reads
the digits in both directions, and writes the words one by one while it attends to the digits.
Numbers in the validation data do not occur in training.

See D. Bahdanau et al., Neural machine translation by jointly learning to align and translate,
ICLR 2015; K. Papineni et al., BLEU, ACL 2002.
"""

import argparse
import collections
import math

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, iterators, optimizer_hooks, optimizers, serializers, training
from mpchain.distributed import GenericMultiNodeEvaluator, MultiNodeUpdater, create_sharded_iterator
from mpchain.training import extensions
from mpchain.typing import Array

SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
WORDS = ["<end>", *SMALL, *TENS, "hundred", "thousand", "and"]
END = 0
NUMBERS = {word: i for i, word in enumerate(WORDS)}


def say(n: int) -> list[str]:
    """Returns the words of a number."""
    if n >= 1000:
        return say(n // 1000) + ["thousand"] + (say(n % 1000) if n % 1000 else [])
    if n >= 100:
        return [SMALL[n // 100], "hundred"] + (["and", *say(n % 100)] if n % 100 else [])
    if n >= 20:
        return [TENS[n // 10 - 2]] + ([SMALL[n % 10]] if n % 10 else [])
    return [SMALL[n]]


def make_pair(n: int) -> tuple[Array, Array]:
    """Returns the digits and the words of a number, both int32."""
    words = [NUMBERS[word] for word in say(n)]
    return np.array([int(c) for c in str(n)], np.int32), np.array(words, np.int32)


class Seq2seq(mpchain.Chain):
    """A bidirectional LSTM that reads digits, and an LSTM with attention that writes words."""

    def __init__(self, n_units: int):
        super().__init__()
        with self.init_scope():
            self.embed_digit = L.EmbedID(10, n_units)
            self.encoder = L.NStepBiLSTM(1, n_units, n_units // 2, dropout=0)
            self.embed_word = L.EmbedID(len(WORDS), n_units)
            self.decoder = L.NStepLSTM(1, n_units, n_units, dropout=0)
            self.attend = L.Linear(n_units, n_units, nobias=True)
            self.combine = L.Linear(2 * n_units, n_units)
            self.out = L.Linear(n_units, len(WORDS))

    def read(self, sources: list[Array]) -> tuple[Variable, Variable]:
        """Returns the memory of each position (B, T, n_units), and scores of positions (B, 1, T).

        The scores are 0, or very low beyond the end of a source.
        """
        lengths = [len(source) for source in sources]
        embedded = F.split_axis(
            self.embed_digit(self.xp.concatenate(sources)), np.cumsum(lengths)[:-1], axis=0
        )
        _, _, memory = self.encoder(None, None, list(embedded))
        places = np.arange(max(lengths)) < np.array(lengths)[:, None]
        scores = self.xp.asarray(np.where(places, 0, -1e9)[:, None].astype(np.float32))
        return F.pad_sequence(memory), scores

    def score_words(self, h: Variable, memory: Variable, scores: Array) -> Variable:
        """Returns scores (B, L, n_words) of the next words, for states h (B, L, n_units)."""
        query = self.attend(h, n_batch_axes=2)
        weights = F.softmax(F.matmul(query, memory, transb=True) + scores, axis=2)
        both = F.concat([h, F.matmul(weights, memory)], axis=2)
        return self.out(F.tanh(self.combine(both, n_batch_axes=2)), n_batch_axes=2)

    def forward(self, sources: list[Array], targets: list[Array]) -> Variable:
        """Returns the mean loss of the words of target sentences."""
        memory, scores = self.read(sources)
        end = self.xp.full(1, END, np.int32)
        lengths = [len(target) + 1 for target in targets]
        shifted = self.xp.concatenate([part for target in targets for part in (end, target)])
        embedded = F.split_axis(self.embed_word(shifted), np.cumsum(lengths)[:-1], axis=0)
        _, _, hs = self.decoder(None, None, list(embedded))
        y = self.score_words(F.pad_sequence(hs), memory, scores)
        answers = [self.xp.concatenate([target, end]) for target in targets]
        t = F.pad_sequence(answers, padding=-1).array  # the label -1 is ignored
        loss = F.softmax_cross_entropy(y.reshape(-1, len(WORDS)), t.ravel())
        mpchain.report({"loss": loss}, self)
        return loss

    def translate(self, sources: list[Array], max_length: int = 16) -> list[list[int]]:
        """Returns the most probable word at each position, until the end."""
        n = len(sources)
        with mpchain.using_config("train", False), mpchain.no_backprop_mode():
            memory, scores = self.read(sources)
            h = c = None
            word = self.xp.full(n, END, np.int32)
            words = []
            for _ in range(max_length):
                x = [self.embed_word(word[i : i + 1]) for i in range(n)]
                h, c, y = self.decoder(h, c, x)
                word = self.score_words(F.stack(y), memory, scores).array[:, 0].argmax(axis=1)
                word = word.astype(np.int32)
                words.append(mpchain.backends.cuda.to_cpu(word))
        sentences = np.stack(words, axis=1).tolist()
        return [s[: s.index(END)] if END in s else s for s in sentences]


def count_ngrams(candidate: list[int], reference: list[int]) -> Array:
    """Returns (5, 2): numbers of right and of all n-grams, for n from 1 to 4, and both lengths."""
    counts = np.zeros((5, 2))
    for n in range(1, 5):
        mine, theirs = [
            collections.Counter(zip(*[words[i:] for i in range(n)]))
            for words in (candidate, reference)
        ]
        counts[n - 1] = (mine & theirs).total(), mine.total()
    counts[4] = len(candidate), len(reference)
    return counts


def bleu(counts: Array) -> float:
    """Returns the BLEU score, given the summed results of ``count_ngrams``."""
    right, total = counts[:4].T
    if not right.all():
        return 0.0
    candidate, reference = counts[4]
    brevity = min(0.0, 1 - reference / candidate)
    return math.exp(brevity + np.log(right / total).mean())


class BleuEvaluator(GenericMultiNodeEvaluator):
    """Reports BLEU, with counts summed over the ranks, and the share of correct sentences."""

    def calc_local(self, sources: list[Array], targets: list[Array]) -> tuple[Array, int, int]:
        references = [mpchain.backends.cuda.to_cpu(target).tolist() for target in targets]
        candidates = self.get_target("main").translate(sources)
        counts = sum(count_ngrams(c, r) for c, r in zip(candidates, references))
        return counts, sum(c == r for c, r in zip(candidates, references)), len(candidates)

    def aggregate(self, results: list[tuple[Array, int, int]]) -> dict[str, float]:
        counts, right, n = (sum(values) for values in zip(*results))
        return {"validation/bleu": bleu(counts), "validation/right": right / n}


@mpchain.dataset.converter()
def convert(batch: list, device) -> tuple[list[Array], list[Array]]:
    """Returns lists of sources and of targets on a device."""
    sources, targets = zip(*batch) if batch else ((), ())
    return device.send(list(sources)), device.send(list(targets))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epoch", type=int, default=10, help="passes over the 10,000 numbers")
    parser.add_argument("--batchsize", type=int, default=64, help="pairs in a global batch")
    parser.add_argument("--units", type=int, default=128, help="size of vectors and states")
    parser.add_argument("--gpu", action="store_true", help="compute on GPUs, one for each rank")
    parser.add_argument("--out", default="result", help="folder of the results")
    parser.add_argument("--resume", help="snapshot to resume from")
    parser.add_argument("--test", action="store_true", help="run a few seconds with few numbers")
    args = parser.parse_args()
    if args.test:
        args.epoch, args.batchsize, args.units = 2, 20, 8
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    device = f"@cupy:{comm.intra_rank}" if args.gpu else "@numpy"
    np.random.seed(0)

    n_train, n_test = (100, 20) if args.test else (10000, 500)
    numbers = np.random.permutation(10**6)[: n_train + n_test]
    pairs = [make_pair(int(n)) for n in numbers]
    train_iter = iterators.SerialIterator(pairs[:n_train], args.batchsize)
    test_iter = iterators.SerialIterator(pairs[n_train:], 100, repeat=False, shuffle=False)
    train_iter = create_sharded_iterator(train_iter, comm)
    test_iter = create_sharded_iterator(test_iter, comm)

    model = Seq2seq(args.units).to_device(device)
    optimizer = mpchain.create_multi_node_optimizer(optimizers.Adam(alpha=3e-3), comm).setup(model)
    optimizer.add_hook(optimizer_hooks.GradientClipping(5.0))
    updater = MultiNodeUpdater(train_iter, optimizer, comm, converter=convert, device=device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    evaluator = BleuEvaluator(comm, test_iter, model, device=device, converter=convert)
    trainer.extend(evaluator, name="bleu")
    columns = ["epoch", "main/loss", "validation/bleu", "validation/right", "elapsed_time"]
    extensions.standard_reports(trainer, columns, snapshots=(1, "epoch"), arguments=args)
    if args.resume:
        serializers.load_npz(args.resume, trainer)
    trainer.run()
    if comm.rank == 0:
        sources = [make_pair(n)[0] for n in (7, 1066, 31416, 271828)]
        for source, words in zip(sources, model.translate(model.device.send(sources))):
            print("".join(map(str, source)), " ".join(WORDS[word] for word in words))


if __name__ == "__main__":
    main()
