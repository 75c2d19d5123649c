"""Plugin of pytest: gives examples in docstrings the usual names and a temporary folder.

The names are np, F, L, comm, ...; the folder is the current one, so examples may write files.
"""

import functools
import unittest

import numpy as np
import pytest

import mpchain
from mpchain import functions, links, optimizers, testing, training
from mpchain.training import extensions


@functools.cache
def _communicator():
    return mpchain.create_communicator()


@pytest.fixture(autouse=True)
def _usual_names(doctest_namespace, request, monkeypatch):
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.chdir(request.getfixturevalue("tmp_path"))
    np.random.seed(0)
    doctest_namespace.update(
        np=np,
        mpchain=mpchain,
        Variable=mpchain.Variable,
        F=functions,
        L=links,
        optimizers=optimizers,
        training=training,
        extensions=extensions,
        testing=testing,
        unittest=unittest,
        comm=_communicator(),
    )
