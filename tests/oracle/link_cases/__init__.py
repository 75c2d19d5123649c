"""Calls of every link that Chainer 7.8.1 has, as text that both sides can read."""

from tests.oracle.link_cases import layers, loss, normalization, recurrent
from tests.oracle.link_cases.case import CASES
