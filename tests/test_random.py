"""Tests draws by sample."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from mpchain import Variable, distributions, kernels, random
from mpchain import functions as F
from mpchain.kernels import philox, thresholds

pytestmark = pytest.mark.slow

KEY = (0x12345678, 0x9ABCDEF0)


def generator(first, n, *, key=KEY, step=7, turn=0, stream=0):
    return random.SampleGenerator(key, step, turn, first=first, n=n, stream=stream)


# The authors of Philox publish these vectors with their code (Random123, kat_vectors).
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_yields_the_published_words(counter, key, expected):
    block, call, step, sample = counter
    for kernel in _kernels_of_the_host():
        rows = np.array([sample]), np.array([block])
        words = kernel.compute(*rows, 1, call, step, *key)
        assert words.tolist() == [list(expected)], kernel.library


def _kernels_of_the_host():
    """Returns the kernels for CPUs; tests/gpu/test_kernels.py compares the kernels for GPUs."""
    return [k for k in kernels.random_words.kernels if not k.library.startswith("cuda")]


def test_every_kernel_yields_the_words_of_the_reference():
    samples, begins = np.array([0, 5, 2**32 + 7, 2**40]), np.array([0, 3, 2**32 - 2, 2**33])
    *others, reference = _kernels_of_the_host()
    arguments = samples, begins, 9, 3 * 2**32 + 5, 2**32 - 1, *KEY
    expected = reference.compute(*arguments)
    assert others
    for kernel in others:
        np.testing.assert_array_equal(kernel.compute(*arguments), expected, kernel.library)


def test_blocks_and_rows_are_counted_across_chunks():
    samples, begins = np.array([3, 4, 2**32 + 3]), np.array([0, 9, 0])
    with thresholds.using(random_chunk=5):
        words = philox.random_words(samples, begins, 4, 1, 2, *KEY)
    for row, (sample, begin) in enumerate(zip(samples, begins)):
        for block in range(4):
            one = philox.random_words(np.array([sample]), np.array([begin + block]), 1, 1, 2, *KEY)
            np.testing.assert_array_equal(words[row, 4 * block : 4 * block + 4], one[0])
    np.testing.assert_array_equal(words[0], words[2])  # counters are modulo 2**32


DRAWS = {
    "dropout": lambda x: F.dropout(x, 0.4).array,
    "dropout of a multiple of the samples": lambda x: F.dropout(
        np.repeat(x, 3, axis=0), 0.4
    ).array.reshape(len(x), 3, -1),
    "gaussian": lambda x: F.gaussian(x, x).array,
    "gumbel_softmax": lambda x: F.gumbel_softmax(x).array,
    "rrelu": lambda x: F.rrelu(-x).array,
    "zoneout": lambda x: F.zoneout(x, x + 1).array,
    "simplified_dropconnect": lambda x: F.simplified_dropconnect(x, np.ones((2, 5), "f")).array,
    "latent of a batch": lambda x: distributions.Normal(x, x + 1).sample().array,
    "latents of a batch": lambda x: (
        distributions.Normal(x, x + 1).sample(1000).array.swapaxes(0, 1)
    ),
    "prior": lambda x: distributions.Normal(np.zeros(12), np.ones(12)).sample(len(x)).array,
    "gamma": lambda x: distributions.Gamma(x + 1, x + 1).sample().array,
    "poisson": lambda x: distributions.Poisson(x + 1).sample(3).array.swapaxes(0, 1),
    "categorical": lambda x: distributions.Categorical(F.softmax(x)).sample().array,
    "multivariate": lambda x: (
        distributions.MultivariateNormal(
            x, scale_tril=np.tile(np.eye(5, dtype="f"), (len(x), 1, 1))
        )
        .sample()
        .array
    ),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_do_not_depend_on_the_division_of_the_batch(name):
    x = np.random.RandomState(0).uniform(0.5, 1.5, (12, 5)).astype("f")
    draw = DRAWS[name]
    with generator(0, 12).in_use():
        whole = draw(x)
    assert len(np.unique(whole.reshape(12, -1), axis=0)) > 1
    for bounds in ([0, 6, 12], [0, 5, 9, 12], [0, 11, 12]):
        parts = []
        for rank, (begin, end) in enumerate(itertools.pairwise(bounds)):
            with generator(begin, end - begin, stream=rank).in_use():
                parts.append(draw(x[begin:end]))
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_steps_of_sequences():
    """Samples 0 to 3 have sequences of 2, 1, 3 and 2 steps; the samples are sorted by length."""

    def draw(first, order, steps):
        x = np.ones((sum(steps), 40), "f")
        with generator(first, len(order)).in_use(), random.sorted_samples(np.array(order)):
            with random.joined_steps(steps):
                return F.noise.dropout_mask(x, 0.5)

    whole = draw(0, [2, 0, 3, 1], [4, 3, 1])
    assert len(np.unique(whole, axis=0)) == len(whole)
    part = draw(2, [0, 1], [2, 2, 1])
    np.testing.assert_array_equal(part, whole[[0, 2, 4, 6, 7]])


def test_what_belongs_to_no_sample_differs_between_streams():
    x = np.ones((7, 11), "f")
    drawn = []
    for stream in range(3):
        with generator(4 * stream, 4, stream=stream).in_use():
            drawn.append(F.dropout(x).array.tobytes())
    assert len(set(drawn)) == 3
    with generator(0, 7).in_use():
        assert F.dropout(x).array.tobytes() not in drawn


@pytest.mark.parametrize("change", [{"key": (1, 2)}, {"step": 8}, {"turn": 1}])
def test_key_step_and_turn_change_the_draws(change):
    drawn = []
    for options in ({}, change):
        with generator(0, 4, **options).in_use():
            drawn.append(random.source(np).random_sample((4, 50)))
    assert not np.isin(drawn[0], drawn[1]).any()


def test_calls_differ_and_a_new_generator_repeats_them():
    with generator(0, 4).in_use():
        first, second = (random.source(np).random_sample((4, 9)) for _ in range(2))
    with generator(0, 4).in_use():
        np.testing.assert_array_equal(random.source(np).random_sample((4, 9)), first)
    assert not np.isin(first, second).any()


def test_outside_the_global_generator_draws():
    np.random.seed(3)
    expected = np.random.random_sample((2, 3))
    np.random.seed(3)
    np.testing.assert_array_equal(random.source(np).random_sample((2, 3)), expected)
    state = np.random.get_state(legacy=False)["state"]
    with generator(0, 2).in_use():
        F.dropout(np.ones((2, 3), "f"))
        distributions.Gamma(np.ones((2, 3)), np.ones((2, 3))).sample()
    np.testing.assert_array_equal(np.random.get_state(legacy=False)["state"]["key"], state["key"])
    assert np.random.get_state(legacy=False)["state"]["pos"] == state["pos"]
    assert not random.is_by_sample()


def test_forget_repeats_the_draws():
    x = np.random.RandomState(0).standard_normal((4, 30)).astype("d")
    function = lambda x: F.dropout(F.dropout(x) ** 2)
    grads = []
    for call in (function, lambda x: F.forget(function, x)):
        with generator(0, 4).in_use():
            F.dropout(x)
            v = Variable(x)
            y = F.sum(call(v)) + F.sum(F.dropout(v))
            y.backward()
            grads.append(v.grad)
            grads.append(F.dropout(x).array)
    np.testing.assert_array_equal(grads[0], grads[2])
    np.testing.assert_array_equal(grads[1], grads[3])


@pytest.mark.parametrize(
    ("name", "arguments", "cdf"),
    [
        ("random_sample", (), scipy.stats.uniform.cdf),
        ("uniform", (-1, 3), scipy.stats.uniform(-1, 4).cdf),
        ("standard_normal", (), scipy.stats.norm.cdf),
        ("standard_exponential", (), scipy.stats.expon.cdf),
        ("gumbel", (), scipy.stats.gumbel_r.cdf),
        ("laplace", (), scipy.stats.laplace.cdf),
        ("standard_cauchy", (), scipy.stats.cauchy.cdf),
        ("standard_gamma", (2.5,), scipy.stats.gamma(2.5).cdf),
    ],
)
def test_distributions(name, arguments, cdf):
    with generator(0, 50).in_use():
        drawn = getattr(random.source(np), name)(*arguments, size=(50, 400))
    assert drawn.shape == (50, 400)
    assert np.isfinite(drawn).all()
    # There are 20,000 draws with a fixed seed; a deviation of 0.014 has a probability of 0.001.
    assert scipy.stats.kstest(drawn.ravel(), cdf).statistic < 0.014


def test_randint():
    with generator(0, 50).in_use():
        drawn = random.source(np).randint(2, 7, (50, 400))
    counts = np.bincount(drawn.ravel(), minlength=8)
    assert counts[:2].tolist() == [0, 0] and counts[7] == 0
    assert scipy.stats.chisquare(counts[2:7]).pvalue > 0.001


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (4, 0), (1,)])
def test_odd_shapes(shape):
    with generator(0, 4).in_use():
        assert random.source(np).random_sample(shape).shape == shape
        assert random.source(np).standard_normal(shape).shape == shape
        assert random.draw(np, "standard_gamma", np.array(2.0), size=(2, *shape)).shape == (
            2,
            *shape,
        )


def test_no_pairs_of_samples_are_alike():
    """The mean of products of two samples' draws must be what independent draws give."""
    n, m = 60, 2000
    with generator(0, n).in_use():
        z = random.source(np).standard_normal((n, m))
    correlations = (z @ z.T / m)[~np.eye(n, dtype=bool)]
    assert abs(correlations).max() < 5.5 / math.sqrt(m)
