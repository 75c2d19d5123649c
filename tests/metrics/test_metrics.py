"""Tests the metrics against scikit-learn on the whole data, and BLEU against its definition."""

import collections
import functools
import itertools
import math
import operator
import sys

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import iterators, metrics, training

sklearn_metrics = pytest.importorskip("sklearn.metrics")

Y = np.random.RandomState(0).randn(101, 5).astype(np.float32)
T = np.random.RandomState(1).randint(0, 5, 101)
SOFTMAX = np.exp(Y.astype(float)) / np.exp(Y.astype(float)).sum(1, keepdims=True)


def value(metric, y=Y, t=T, n_batches=4):
    """Returns the value of a metric, or its several values by name, for batches of different
    lengths."""
    meter = metrics.Meter({"it": metric})
    bounds = [len(t) * i * i // n_batches**2 for i in range(n_batches + 1)]
    for begin, end in itertools.pairwise(bounds):
        meter.add(y[begin:end], t[begin:end])
    values = meter.compute()
    return values["it"] if len(values) == 1 else values


def test_accuracy_and_top_k():
    assert value(metrics.accuracy()) == sklearn_metrics.accuracy_score(T, Y.argmax(1))
    for k in (1, 2, 4):
        expected = sklearn_metrics.top_k_accuracy_score(T, Y, k=k)
        assert value(metrics.top_k(k)) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="top_k: k must be positive, not 0"):
        metrics.top_k(0)


def test_confusion_matrix():
    expected = sklearn_metrics.confusion_matrix(T, Y.argmax(1))
    np.testing.assert_array_equal(value(metrics.confusion_matrix()), expected)
    np.testing.assert_array_equal(value(metrics.confusion_matrix(), Y.argmax(1)), expected)
    assert value(metrics.confusion_matrix(labels=[*range(7)])).shape == (7, 7)


@pytest.mark.parametrize("average", ["macro", "weighted", "micro"])
def test_precision_recall_f1(average):
    expected = sklearn_metrics.precision_recall_fscore_support(T, Y.argmax(1), average=average)
    found = value(metrics.precision_recall_f1(average))
    assert list(found) == ["it/precision", "it/recall", "it/f1"]
    assert tuple(found.values()) == expected[:3]


def test_precision_recall_f1_of_two_classes():
    found, t = Y[:, :2].argmax(1), T % 2
    values = value(metrics.precision_recall_f1("binary"), Y[:, :2], t)
    assert values["it/precision"] == sklearn_metrics.precision_score(t, found)
    assert values["it/f1"] == sklearn_metrics.f1_score(t, found)


def test_auc():
    two = T % 2
    expected = sklearn_metrics.roc_auc_score(two, Y[:, 0])
    assert value(metrics.auc(), Y[:, 0], two) == expected
    logits = np.stack([np.zeros(len(Y), np.float32), Y[:, 0]], 1)
    assert value(metrics.auc(), logits, two) == expected
    for kind in ("ovr", "ovo"):
        expected = sklearn_metrics.roc_auc_score(T, SOFTMAX, multi_class=kind)
        assert value(metrics.auc(multi_class=kind)) == pytest.approx(expected, rel=1e-12)


def test_perplexity():
    expected = math.exp(sklearn_metrics.log_loss(T, SOFTMAX))
    assert value(metrics.perplexity()) == pytest.approx(expected, rel=1e-12)
    assert value(metrics.perplexity(), 1e4 * Y) == math.inf


def defined_bleu(translations, references, n):
    """Computes BLEU by the formula of K. Papineni et al., ACL 2002, with the closest reference
    length."""
    product, length, wanted = 1.0, sum(map(len, translations)), 0
    for words, refs in zip(translations, references, strict=True):
        wanted += min(map(len, refs), key=lambda size: (abs(size - len(words)), size))
    for order in range(1, n + 1):
        hits = total = 0
        for words, refs in zip(translations, references, strict=True):
            found, *allowed = [
                collections.Counter(zip(*[part[i:] for i in range(order)]))
                for part in (words, *refs)
            ]
            total += found.total()
            hits += (found & functools.reduce(operator.or_, allowed)).total()
        product *= hits / total
    return product ** (1 / n) * math.exp(min(0, 1 - wanted / length))


def test_bleu():
    pytest.importorskip("sacrebleu")
    random = np.random.RandomState(2)
    references = [
        [random.randint(0, 4, random.randint(9, 14)).tolist() for _ in range(1 + i % 3)]
        for i in range(20)
    ]
    translations = [refs[0][:9] + random.randint(0, 4, 2).tolist() for refs in references]
    for n in (4, 2):
        expected = pytest.approx(defined_bleu(translations, references, n), rel=1e-12)
        assert value(metrics.bleu(n), translations, references) == expected
    # Words may contain spaces, or differ only by case.
    words = [["New York", "a", "A", "."]], [[["New York", "A", "a", "."]]]
    assert value(metrics.bleu(1), *words) == pytest.approx(1)
    assert value(metrics.bleu(2), *words) == 0
    with pytest.raises(ValueError, match="bleu: y and t must have the same length"):
        metrics.bleu().keep([], [[]])
    with pytest.raises(ValueError, match="bleu: t must have a reference for each translation"):
        metrics.bleu().keep([["a"]], [[]])


def test_ignored_labels_and_further_axes():
    t = np.where(T % 3 == 0, -1, T)
    counts = t != -1
    expected = sklearn_metrics.accuracy_score(T[counts], Y[counts].argmax(1))
    assert value(metrics.accuracy(-1), t=t) == expected
    assert value(metrics.top_k(1, -1), t=t) == pytest.approx(expected, rel=1e-12)
    matrix = sklearn_metrics.confusion_matrix(T[counts], Y[counts].argmax(1))
    for y in (Y, Y.argmax(1)):
        np.testing.assert_array_equal(value(metrics.confusion_matrix(None, -1), y, t), matrix)
    y, t = Y[:100].reshape(10, 10, 5).transpose(0, 2, 1), T[:100].reshape(10, 10)
    assert value(metrics.accuracy(), y, t) == value(metrics.accuracy(), Y[:100], T[:100])
    assert math.isnan(value(metrics.accuracy(0), Y[:4], np.zeros(4, int)))


METRICS = {
    "accuracy": metrics.accuracy(),
    "top_k": metrics.top_k(2),
    "confusion_matrix": metrics.confusion_matrix(),
    "auc": metrics.auc(),
    "perplexity": metrics.perplexity(),
}


@pytest.mark.parametrize("name", METRICS)
def test_wrong_shapes(name):
    with pytest.raises(ValueError, match=rf"{name}: y must .*\(101, 5\) and t \(7,\)"):
        METRICS[name].keep(Y, T[:7])


def test_no_samples():
    with pytest.raises(ValueError, match="no rank has samples for 'accuracy'; call add first"):
        metrics.Meter({"accuracy": metrics.accuracy()}).compute()


@pytest.mark.parametrize(
    ("make", "module", "library"),
    [
        (metrics.auc, "sklearn.metrics", "scikit-learn"),
        (metrics.confusion_matrix, "sklearn.metrics", "scikit-learn"),
        (metrics.precision_recall_f1, "sklearn.metrics", "scikit-learn"),
        (metrics.bleu, "sacrebleu.metrics", "sacrebleu"),
    ],
)
def test_missing_libraries(monkeypatch, make, module, library):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RuntimeError, match=f"{make.__name__}: {library} is not installed: pip"):
        make()


def test_the_extension_reports(tmp_path):
    data = [(y, t) for y, t in zip(Y, T)]
    scale = mpchain.links.Scale(W_shape=(5,), bias_term=False)
    updater = training.StandardUpdater(
        iterators.SerialIterator(data, 101),
        mpchain.optimizers.SGD(lr=0).setup(scale),
        loss_func=lambda x, t: F.softmax_cross_entropy(scale(x), t.astype(np.int32)),
    )
    trainer = training.Trainer(updater, (1, "epoch"), out=tmp_path)
    batches = iterators.SerialIterator(data, 30, repeat=False, shuffle=False)
    scores = {"accuracy": metrics.accuracy(), "macro": metrics.precision_recall_f1()}
    trainer.extend(metrics.MetricsEvaluator(batches, scale, scores))
    log = training.extensions.LogReport()
    trainer.extend(log)
    trainer.run()
    expected = sklearn_metrics.accuracy_score(T, Y.argmax(1))
    assert log.log[-1]["metrics/accuracy"] == pytest.approx(expected)
    assert log.log[-1]["metrics/macro/f1"] > 0
