"""Tags the words of sentences by a bidirectional LSTM and a conditional random field.

    python train_crf.py                         one process
    mpchain-launch -n 2 train_crf.py            two ranks, the same numbers

A small grammar makes the sentences. Some of its words can be either nouns or verbs, as in "the men
fish the fish". The random field learns which tags can follow a tag, and finds the best tags of a
whole sentence. --file reads your own sentences: a word and its tag on each line, separated by a
space, and an empty line after each sentence.
"""

import argparse
import pathlib

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, datasets, iterators, optimizers, serializers, training
from mpchain.distributed import MultiNodeUpdater, create_sharded_iterator
from mpchain.training import extensions
from mpchain.typing import Array

Sentence = list[tuple[str, str]]  # pairs of a word and its tag

WORDS = {
    "det": "the a this that my".split(),
    "adj": "old young big small green".split(),
    "noun": "man men dog fish watch ship park saw plant duck".split(),
    "verb": "fish watch ship park saw plant duck see like know".split(),
    "prep": "in on near with behind".split(),
    "pron": "he she they we it".split(),
}


def make_sentence(random: np.random.RandomState) -> Sentence:
    """Returns a sentence with a subject and a verb, and perhaps an object and a place."""

    def word(tag):
        return WORDS[tag][random.randint(len(WORDS[tag]))], tag

    def phrase():
        if random.uniform() < 0.2:
            return [word("pron")]
        adjectives = [word("adj") for _ in range(random.randint(3))]
        return [word("det"), *adjectives, word("noun")]

    sentence = [*phrase(), word("verb")]
    if random.uniform() < 0.7:
        sentence += phrase()
    if random.uniform() < 0.5:
        sentence += [word("prep"), *phrase()]
    return sentence


def read_sentences(path: str) -> list[Sentence]:
    blocks = pathlib.Path(path).read_text("utf-8").strip().split("\n\n")
    return [[tuple(line.split()[:2]) for line in block.splitlines()] for block in blocks]


class Tagger(mpchain.Chain):
    """A model that scores the tags of each word in a sentence, and transitions between tags."""

    def __init__(self, n_words: int, n_tags: int, n_units: int):
        super().__init__()
        with self.init_scope():
            self.embed = L.EmbedID(n_words, n_units)
            self.lstm = L.NStepBiLSTM(1, n_units, n_units, dropout=0)
            self.out = L.Linear(2 * n_units, n_tags)
            self.crf = L.CRF1d(n_tags)

    def score(self, sentences: list[Array]) -> list[Variable]:
        """Returns scores (length, n_tags) of sentences (length,), int32."""
        ends = np.cumsum([len(sentence) for sentence in sentences])[:-1]
        embedded = F.split_axis(self.embed(self.xp.concatenate(sentences)), ends, axis=0)
        _, _, hs = self.lstm(None, None, list(embedded))
        return list(F.split_axis(self.out(F.concat(hs, axis=0)), ends, axis=0))

    def forward(self, sentences: list[Array], tags: list[Array]) -> Variable:
        """Returns the negative log-likelihood of the tags, averaged over the sentences."""
        # Sentences are sorted by decreasing length, and words by position: all first words come
        # first, then all second words.
        order = np.argsort([-len(sentence) for sentence in sentences], kind="stable")
        scores = self.score([sentences[i] for i in order])
        sorted_tags = [tags[i] for i in order]
        xs, ys = F.transpose_sequence(scores), F.transpose_sequence(sorted_tags)
        loss = self.crf(xs, ys)
        values = {"loss": loss}
        if not mpchain.config.train:
            _, found = self.crf.argmax(xs)
            right = [y.array == path for y, path in zip(ys, found)]
            values["sentences"] = np.mean([all(r[i] for r in right if i < len(r))
                                           for i in range(len(sentences))])  # fmt: skip
        mpchain.report(values, self)
        return loss

    def tag(self, sentence: Array) -> list[int]:
        """Returns the best tags of one sentence."""
        with mpchain.using_config("train", False), mpchain.no_backprop_mode():
            _, path = self.crf.argmax(F.transpose_sequence(self.score([sentence])))
        return [int(tag[0]) for tag in path]


@mpchain.dataset.converter()
def convert(batch: list, device) -> tuple[list[Array], list[Array]]:
    """Returns lists of sentences and of their tags, on a device."""
    sentences, tags = zip(*batch) if batch else ((), ())
    return device.send(list(sentences)), device.send(list(tags))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", help="tagged sentences; default: synthetic")
    parser.add_argument("--epoch", type=int, default=5, help="passes over the sentences")
    parser.add_argument("--batchsize", type=int, default=50, help="sentences in a global batch")
    parser.add_argument("--units", type=int, default=32, help="units in each direction")
    parser.add_argument("--gpu", action="store_true", help="compute on GPUs, one for each rank")
    parser.add_argument("--out", default="result", help="folder of the results")
    parser.add_argument("--resume", help="snapshot to resume from")
    parser.add_argument("--test", action="store_true", help="run a few seconds with few sentences")
    args = parser.parse_args()
    if args.test:
        args.epoch, args.batchsize, args.units = 2, 20, 8
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    device = f"@cupy:{comm.intra_rank}" if args.gpu else "@numpy"
    np.random.seed(0)

    if args.file and not args.test:
        sentences = read_sentences(args.file)
    else:
        random = np.random.RandomState(1)
        sentences = [make_sentence(random) for _ in range(100 if args.test else 2000)]
    words = sorted({word for sentence in sentences for word, _ in sentence})
    tags = sorted({tag for sentence in sentences for _, tag in sentence})
    data = [
        (
            np.array([words.index(word) for word, _ in sentence], np.int32),
            np.array([tags.index(tag) for _, tag in sentence], np.int32),
        )
        for sentence in sentences
    ]
    train, test = datasets.split_dataset(data, len(data) * 4 // 5)
    train_iter = iterators.SerialIterator(train, args.batchsize)
    test_iter = iterators.SerialIterator(test, args.batchsize, repeat=False, shuffle=False)
    train_iter = create_sharded_iterator(train_iter, comm)
    test_iter = create_sharded_iterator(test_iter, comm)

    model = Tagger(len(words), len(tags), args.units).to_device(device)
    optimizer = mpchain.create_multi_node_optimizer(optimizers.Adam(alpha=0.01), comm).setup(model)
    updater = MultiNodeUpdater(train_iter, optimizer, comm, converter=convert, device=device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    evaluator = extensions.Evaluator(test_iter, model, converter=convert, device=device)
    trainer.extend(mpchain.create_multi_node_evaluator(evaluator, comm))
    columns = ["epoch", "main/loss", "validation/main/loss", "validation/main/sentences"]
    extensions.standard_reports(
        trainer, [*columns, "elapsed_time"], snapshots=(1, "epoch"), arguments=args
    )
    if args.resume:
        serializers.load_npz(args.resume, trainer)
    trainer.run()
    if comm.rank == 0:
        for i in range(3):
            found = model.tag(model.device.send(test[i][0]))
            print(" ".join(f"{words[w]}/{tags[t]}" for w, t in zip(test[i][0], found)))


if __name__ == "__main__":
    main()
