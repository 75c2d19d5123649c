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
    modules = mpchain, optimizers, training, extensions, testing, unittest
    doctest_namespace.update({module.__name__.rpartition(".")[2]: module for module in modules})
    doctest_namespace.update(np=np, Variable=mpchain.Variable, F=functions, L=links)
    # Functions that an example declares are not those of the module that the example is in.
    doctest_namespace.update(comm=_communicator(), __name__="__main__")
