"""Plugin of pytest: gives examples in docstrings the usual names (np, F, L, comm, ...)."""

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
def _usual_names(doctest_namespace):
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
