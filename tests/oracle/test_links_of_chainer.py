"""Compares every link with Chainer 7.8.1, which runs in a separate environment.

The environment variable MPCHAIN_TEST_CHAINER_PYTHON names that environment's interpreter.
"""

import os

import pytest

from tests.oracle import links
from tests.oracle.link_cases import CASES

pytestmark = pytest.mark.skipif(
    not os.environ.get(links.VARIABLE),
    reason=f"{links.VARIABLE} names no interpreter that has Chainer 7.8.1",
)
ELSEWHERE = {
    "Link",
    "Chain",
    "ChainList",
    "GoogLeNet",
    "ResNet50Layers",
    "ResNet101Layers",
    "ResNet152Layers",
    "TheanoFunction",
    "VGG16Layers",
    "VGG19Layers",
}
"""Classes that are no layers, image models, which other tests cover, and Theano."""


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    oracle = links.Oracle(tmp_path_factory.mktemp("oracle"))
    yield oracle
    print(f"{oracle.counts} arrays compared")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_link(oracle, case):
    differences = oracle.differences(case)
    assert not differences, "\n".join(differences)


def test_every_link_of_chainer_has_a_case(oracle):
    text = " ".join(case.make for case in CASES)
    missing = {name for name in oracle.links_of_chainer if f"L.{name}(" not in text}
    assert missing <= ELSEWHERE
