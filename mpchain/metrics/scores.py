"""The metrics, which measure how well outputs match targets.

``y`` is a batch of a model's outputs, as an array or a Variable, and ``t`` is the targets. Most
metrics take scores ``y`` of classes, (N, C, ...), and integer labels ``t``, (N, ...).
"""

import itertools
import math
from typing import Any

import numpy as np

from mpchain import annexes
from mpchain.backends import cuda
from mpchain.metrics.meter import Metric


def accuracy(ignore_label: int | None = None) -> Metric:
    """Returns a metric: the share of labels that have the greatest score.

    Args:
        ignore_label: label of targets that do not count.

    Example:
        >>> from mpchain import metrics
        >>> meter = metrics.Meter({"accuracy": metrics.accuracy()})
        >>> meter.add(np.array([[1.0, 2.0], [4.0, 3.0]]), np.array([1, 1]))
        >>> meter.compute()
        {'accuracy': 0.5}
    """

    def keep(y, t):
        y, t = _rows("accuracy", y, t, ignore_label)
        return (y.argmax(1) == t,)

    return Metric(keep, lambda hits: float(hits.mean()) if hits.size else math.nan)


def top_k(k: int, ignore_label: int | None = None) -> Metric:
    """Returns a metric: the share of labels for which fewer than ``k`` classes score higher.

    Args:
        k: a positive integer.
        ignore_label: label of targets that do not count.

    Raises:
        ValueError: ``k`` is not positive.

    Example:
        >>> from mpchain import metrics
        >>> meter = metrics.Meter({"top 2": metrics.top_k(2)})
        >>> meter.add(np.array([[1.0, 2.0, 3.0], [4.0, 3.0, 5.0]]), np.array([1, 1]))
        >>> meter.compute()
        {'top 2': 0.5}
    """
    if k < 1:
        raise ValueError(f"top_k: k must be positive, not {k}")

    def keep(y, t):
        y, t = _rows("top_k", y, t, ignore_label)
        return ((y > y[np.arange(len(t)), t][:, None]).sum(1) < k,)

    return Metric(keep, lambda hits: float(hits.mean()) if hits.size else math.nan)


def confusion_matrix(labels: list[int] | None = None, ignore_label: int | None = None) -> Metric:
    """Returns a metric: the numbers (C, C) of targets of class i (row) predicted as j (column).

    scikit-learn computes it (``pip install 'mpchain[metrics]'``).

    Args:
        labels: the classes; None: those that occur.
        ignore_label: label of targets that do not count.

    Raises:
        RuntimeError: scikit-learn is not installed.

    Example:
        >>> from mpchain import metrics
        >>> meter = metrics.Meter({"matrix": metrics.confusion_matrix()})
        >>> meter.add(np.array([[1.0, 2.0], [4.0, 3.0]]), np.array([1, 1]))
        >>> meter.compute()["matrix"]
        array([[0, 0],
               [1, 1]])
    """
    library = _library("sklearn.metrics", "confusion_matrix")
    return Metric(
        _predictions("confusion_matrix", ignore_label),
        lambda found, t: library.confusion_matrix(t, found, labels=labels),
    )


def precision_recall_f1(
    average: str = "macro", labels: list[int] | None = None, ignore_label: int | None = None
) -> Metric:
    """Returns a metric: precision, recall, and F1 (their harmonic mean); 0 where undefined.

    scikit-learn computes them (``pip install 'mpchain[metrics]'``).

    Args:
        average: ``'macro'`` (the mean over the classes), ``'weighted'`` (the mean weighted by the
            classes' numbers of targets), ``'micro'`` (over all samples) or ``'binary'`` (class 1).
        labels: the classes; None: those that occur.
        ignore_label: label of targets that do not count.

    Raises:
        RuntimeError: scikit-learn is not installed.

    Example:
        >>> from mpchain import metrics
        >>> meter = metrics.Meter({"macro": metrics.precision_recall_f1()})
        >>> meter.add(np.array([[1.0, 2.0], [4.0, 3.0]]), np.array([1, 0]))
        >>> meter.compute()
        {'macro/precision': 1.0, 'macro/recall': 1.0, 'macro/f1': 1.0}
    """
    library = _library("sklearn.metrics", "precision_recall_f1")

    def compute(found, t):
        options = {"average": average, "labels": labels, "zero_division": 0}
        values = library.precision_recall_fscore_support(t, found, **options)
        return dict(zip(("precision", "recall", "f1"), map(float, values[:3])))

    return Metric(_predictions("precision_recall_f1", ignore_label), compute)


def auc(average: str = "macro", multi_class: str = "ovr") -> Metric:
    """Returns a metric: the area under the ROC curve.

    scikit-learn computes it (``pip install 'mpchain[metrics]'``).

    Args:
        average: with more than two classes, ``'macro'`` or ``'weighted'``.
        multi_class: with more than two classes, ``'ovr'`` (each class against all other classes) or
            ``'ovo'`` (all pairs of classes); both use the softmax of the scores.

    Returns:
        A metric of scores (N,) of class 1, or of logits (N, C).

    Raises:
        RuntimeError: scikit-learn is not installed.

    Example:
        >>> from mpchain import metrics
        >>> meter = metrics.Meter({"auc": metrics.auc()})
        >>> meter.add(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
        >>> meter.compute()
        {'auc': 0.75}
    """
    library = _library("sklearn.metrics", "auc")

    def keep(y, t):
        y, t = _host(y), _host(t)
        if y.ndim not in (1, 2) or t.shape != y.shape[:1]:
            raise ValueError(
                "auc: y must be scores (N,) or logits (N, C) for labels t (N,), "
                f"but y has {y.shape} and t {t.shape}"
            )
        if y.ndim == 1:
            return y, t
        return (y[:, 1] - y[:, 0] if y.shape[1] == 2 else np.exp(_log_softmax(y)), t)

    def compute(scores, t):
        options = {"average": average, "multi_class": multi_class}
        if scores.ndim == 2:
            options["labels"] = np.arange(scores.shape[1])
        return float(library.roc_auc_score(t, scores, **options))

    return Metric(keep, compute)


def perplexity(ignore_label: int | None = -1) -> Metric:
    """Returns a metric: the exponential of the mean cross entropy of labels and softmax of scores.

    Args:
        ignore_label: label of targets that do not count.

    Example:
        >>> from mpchain import metrics
        >>> meter = metrics.Meter({"perplexity": metrics.perplexity()})
        >>> meter.add(np.zeros((3, 4)), np.array([0, 2, -1]))
        >>> round(meter.compute()["perplexity"], 6)
        4.0
    """

    def keep(y, t):
        y, t = _rows("perplexity", y, t, ignore_label)
        return (-_log_softmax(y)[np.arange(len(t)), t],)

    def compute(losses):
        # The sum is rounded only once, so the order of the samples does not matter.
        mean = math.fsum(losses) / losses.size if losses.size else math.nan
        return math.exp(mean) if not mean > 700 else math.inf  # exp overflows float64 near 709

    return Metric(keep, compute)


def bleu(n: int = 4) -> Metric:
    """Returns a metric: the BLEU score of translations, a measure of n-grams found in references.

    sacrebleu (``pip install 'mpchain[metrics]'``) computes it over the whole corpus, without
    smoothing. Words are compared unchanged, without further splitting or case folding.

    Args:
        n: the maximum length of n-grams.

    Returns:
        A metric of a list of translations and a list of references. A translation is a list of
        words or of integers; its references are a list of such lists.

    Raises:
        ValueError: a translation has no reference, or there are more or fewer translations than
            lists of references.
        RuntimeError: sacrebleu is not installed.

    Example:
        >>> from mpchain import metrics
        >>> meter = metrics.Meter({"bleu": metrics.bleu(n=2)})  # doctest: +SKIP
        >>> meter.add([["the", "cat", "sat"]], [[["the", "cat", "sat"]]])  # doctest: +SKIP
        >>> meter.compute()  # doctest: +SKIP
        {'bleu': 1.0}
    """
    library = _library("sacrebleu.metrics", "bleu", "sacrebleu")
    score = library.BLEU(max_ngram_order=n, smooth_method="none", tokenize="none", force=True)

    def keep(y, t):
        if len(y) != len(t):
            raise ValueError(
                f"bleu: y and t must have the same length, but have {len(y)} and {len(t)}"
            )
        if not all(map(len, t)):
            raise ValueError("bleu: t must have a reference for each translation")
        return [list(words) for words in y], [[list(r) for r in references] for references in t]

    def compute(translations, references):
        numbers = {}  # integers replace words, because sacrebleu splits texts at spaces

        def text(words):
            return " ".join([str(numbers.setdefault(word, len(numbers))) for word in words])

        columns = itertools.zip_longest(*([text(r) for r in of_one] for of_one in references))
        lines = [text(words) for words in translations]
        return score.corpus_score(lines, [list(column) for column in columns]).score / 100

    return Metric(keep, compute)


def _library(module, name, library="scikit-learn"):
    message = f"{name}: {library} is not installed: pip install 'mpchain[metrics]'"
    return annexes.library(module, message)


def _host(x: Any) -> np.ndarray:
    return np.asarray(cuda.to_cpu(getattr(x, "array", x)))


def _check(is_right, name, y, t):
    if not is_right:
        raise ValueError(
            f"{name}: y must have the shape of t, and an axis of classes after the first, "
            f"but y has {y.shape} and t {t.shape}"
        )


def _rows(name, y, t, ignore_label):
    """Returns scores (n, C) and labels (n,), without ignored labels."""
    y, t = _host(y), _host(t)
    _check(y.ndim == t.ndim + 1 and (len(y), *y.shape[2:]) == t.shape, name, y, t)
    y, t = np.moveaxis(y, 1, -1).reshape(-1, y.shape[1]), t.reshape(-1)
    if ignore_label is None:
        return y, t
    counts = t != ignore_label
    return y[counts], t[counts]


def _predictions(name, ignore_label):
    """Returns a function that keeps predicted and true labels; ``y`` may be labels, too."""

    def keep(y, t):
        y, t = _host(y), _host(t)
        if y.ndim == t.ndim + 1:
            y, t = _rows(name, y, t, ignore_label)
            return y.argmax(1), t
        _check(y.shape == t.shape, name, y, t)
        counts = np.full(t.shape, True) if ignore_label is None else t != ignore_label
        return y[counts], t[counts]

    return keep


def _log_softmax(y):
    y = y.astype(np.float64)
    y = y - y.max(1, keepdims=True)
    return y - np.log(np.exp(y).sum(1, keepdims=True))
