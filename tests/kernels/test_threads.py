"""Tests kernels on several threads: results do not change, and errors reach the caller."""

import os
import subprocess
import sys

import pytest

from tests.kernels.needs import needs_numba, needs_onednn

pytestmark = [
    pytest.mark.slow,
    needs_onednn,
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
v = mpchain.Variable(random.randn(1001, 773).astype("f"))
rows = random.rand(2, 773).astype("f")
for f in (F.gelu, F.tanh, F.softplus, F.erf, F.softmax, F.log_softmax, lambda v: v * v + 1):
    F.sum(f(v) * f(v)).backward()
F.sum(F.layer_normalization(v, *rows) ** 3).backward()
arrays = y.array, z.array, x.grad, x.array, words, v.grad
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


_LOOPS = """
import os, threading
import numpy as np
from mpchain.kernels import thresholds
from mpchain.kernels.cpu import numba_threads
from mpchain.kernels.cpu.compiler import compiled
from mpchain.kernels.cpu.numba_threads import in_parts_of, run_elements, run_rows, ways

thresholds.threads = 0

def count(begin, end, x, step, pair):
    for i in range(begin, end):
        x[i] += step * pair[1]

def double(factor, x, y):
    for i in range(x.size):
        y[i] = x[i] * factor

def fill(begin, end, x, y):
    for i in range(begin, end):
        y[i] = 0
        for j in range(x.shape[1]):
            y[i] += x[i, j]

for n in range(1, 40):
    x = np.zeros(n, np.int16)
    in_parts_of(count, n, n, x, 1, (0.0, 2))
    assert (x == 2).all(), (n, x)
for dtype in "fd":
    x = np.arange(1003, dtype=dtype)
    x.flags.writeable = False
    y = np.empty_like(x)
    run_elements(compiled(double), x.size, 2.0, x, y)
    assert (y == 2 * x).all()
    run_elements(compiled(double), 500, 2.0, x[1:1001:2], y[::-2][:500])
    assert (y[::-2][:500] == 2 * x[1:1001:2]).all()
rows = np.random.RandomState(0).randint(0, 9, (60, 70)).astype("d")
for x in (rows, rows.T, rows[::2, ::3], rows[:, :1], rows[:1]):
    y = np.empty(len(x))
    run_rows(compiled(fill), len(x), x.size, x, y)
    assert (y == x.sum(axis=1)).all()
assert None not in ways.values() and len(ways) == 8

totals = [np.zeros(500) for _ in range(4)]
def work(total):
    for _ in range(50):
        in_parts_of(count, 500, 500, total, 1.0, (0.0, 2))
workers = [threading.Thread(target=work, args=(total,)) for total in totals]
[worker.start() for worker in workers]
[worker.join() for worker in workers]
assert all((total == 100).all() for total in totals)

n_ways = len(ways)
if not os.fork():  # the child has none of the threads
    ways.clear()
    in_parts_of(count, 500, 500, totals[0], 1.0, (0.0, 2))
    os._exit(len(ways) + (totals[0] != 102).any())
print(os.wait()[1])

numba_threads._LAUNCH += "    what_another_numba_lacks()\\n"
numba_threads._compiled_launch.cache_clear()
ways.clear()
for _ in range(2):
    in_parts_of(count, 500, 500, totals[0], 1.0, (0.0, 2))
print((totals[0] == 104).all(), list(ways.values()))
"""

# The first of two processes with one cache compiles one loop, and the second the other loop.
_OF_CACHE = """
import sys
import numpy as np
from mpchain.kernels import thresholds
from mpchain.kernels.cpu.compiler import compile_written_loop
from mpchain.kernels.cpu.numba_threads import run_elements, ways

thresholds.threads = 0
def loop_of(formula):
    text = f"def run(a, x, y):\\n    for i in range(x.size):\\n        y[i] = {formula}"
    return compile_written_loop("a loop", text)

first, second = loop_of("x[i] + a"), loop_of("x[i] * 7")
x, y = np.arange(4.0), np.zeros(4)
if "second" in sys.argv:
    second(1.0, x, y)
first(1.0, x, y)
for loop in (first, second):
    run_elements(loop, 4, 1.0, x, y)
    print(*y)
assert len(ways) == 2 and None not in ways.values()
"""


def outputs(program, n_threads, *words, **variables):
    environment = {**os.environ, "OMP_NUM_THREADS": str(n_threads), "OPENBLAS_NUM_THREADS": "1"}
    environment |= variables
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.long
@needs_numba
def test_the_same_bits_on_any_number_of_threads():
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


@needs_numba
def test_loops_get_all_kinds_of_arguments_on_threads():
    status, refused = outputs(_LOOPS, 3)
    assert status == "0"
    assert refused == "True [None]"


@needs_numba
def test_threads_run_the_loop_that_was_asked_for(tmp_path):
    for word in ("first", "second"):
        added, multiplied = outputs(_OF_CACHE, 2, word, NUMBA_CACHE_DIR=str(tmp_path))
        assert added == "1.0 2.0 3.0 4.0"
        assert multiplied == "0.0 7.0 14.0 21.0"
