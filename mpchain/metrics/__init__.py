"""Computes metrics of a model over the samples of all ranks."""

from mpchain.metrics.meter import Meter as Meter
from mpchain.metrics.meter import Metric as Metric
from mpchain.metrics.meter import MetricsEvaluator as MetricsEvaluator
from mpchain.metrics.scores import accuracy as accuracy
from mpchain.metrics.scores import auc as auc
from mpchain.metrics.scores import bleu as bleu
from mpchain.metrics.scores import confusion_matrix as confusion_matrix
from mpchain.metrics.scores import perplexity as perplexity
from mpchain.metrics.scores import precision_recall_f1 as precision_recall_f1
from mpchain.metrics.scores import top_k as top_k
