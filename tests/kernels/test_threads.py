"""Tests kernels on several threads: results do not change, and errors reach the caller."""

import os
import subprocess
import sys

import pytest

from mpchain.kernels.cpu import onednn

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(onednn.why_absent() is not None, reason="needs oneDNN"),
]
_SAME = """
import hashlib, os, threading
import numpy as np
import mpchain
import mpchain.functions as F
from mpchain import kernels, optimizers
from mpchain.kernels import thresholds
from mpchain.kernels.cpu.numba_threads import ways
from mpchain.kernels.philox import random_words

thresholds.compiled_loop = thresholds.compiled_step = -1
random = np.random.RandomState(0)
x = mpchain.Parameter(random.randn(8, 17, 99, 99).astype("f"))
gamma, beta = random.rand(2, 17).astype("f")
y = F.leaky_relu(F.batch_normalization(x, gamma, beta))
z = F.max_pooling_2d(F.fixed_batch_normalization(y, gamma, beta, beta, gamma), 3, 2)
loss = F.sum(z * z)
loss.backward()
link = mpchain.Link()
with link.init_scope():
    link.x = x
optimizers.Adam().setup(link).update()
words = random_words(np.arange(1000), np.arange(1000), 300, 1, 2, 3, 4)
arrays = y.array, z.array, x.grad, x.array, words
n_threads = len(os.listdir("/proc/self/task")) - threading.active_count() + 1
print(hashlib.sha256(b"".join(map(np.ascontiguousarray, arrays))).hexdigest(), n_threads)
loops = {key[0] for key, way in ways.items() if way is not None}
print(len(loops), None in ways.values())
"""
_OTHERS = """
import os, threading
from mpchain.kernels.cpu.threads import in_parts

done, both = [], threading.Barrier(2, timeout=60)
def run(begin, end):
    both.wait()  # until two threads have a part
    if begin:
        raise KeyError("of the second part")
    done.append((begin, end))

try:
    in_parts(run, 6, 1 << 20)
except KeyError as error:
    print(error, done)
done.clear()
in_parts(lambda begin, end: done.append((begin, end)), 6, 100)
print(done)
child = os.fork()
if not child:  # it has none of the threads
    done.clear()
    in_parts(lambda begin, end: done.append((begin, end)), 6, 1 << 20)
    os._exit(done != [(0, 6)])
print(os.waitpid(child, 0)[1])
"""


def outputs(program, n_threads):
    environment = {**os.environ, "OMP_NUM_THREADS": str(n_threads), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_same_bits_on_any_number_of_threads():
    pytest.importorskip("numba")
    found = [" ".join(outputs(_SAME, n)).split() for n in (1, 2, 3)]
    bits, n_threads, n_loops, is_one_refused = zip(*found)
    assert len({*bits}) == 1
    assert n_threads == ("1", "2", "3")
    assert n_loops[0] == "0" and n_loops[1] == n_loops[2] and int(n_loops[1]) >= 8
    assert {*is_one_refused} == {"False"}


def test_errors_small_arrays_and_forked_processes():
    failed, whole, status = outputs(_OTHERS, 2)
    assert failed == "'of the second part' [(0, 3)]"
    assert whole == "[(0, 6)]"
    assert status == "0"
