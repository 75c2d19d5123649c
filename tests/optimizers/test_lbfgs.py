"""Tests L-BFGS against SciPy, its state, and its errors."""

import numpy as np
import pytest

import mpchain
from mpchain import functions as F
from mpchain import optimizer_hooks, optimizers, serializers


def _vector(x):
    link = mpchain.Link()
    with link.init_scope():
        link.x = mpchain.Parameter(np.array(x, np.float64))
    return link


def _rosenbrock(x):
    return F.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def _logistic():
    random = np.random.RandomState(0)
    x, t = random.normal(size=(40, 5)), random.randint(2, size=40).astype(float)

    def loss(w):
        z = F.matmul(x, w)
        return F.mean(F.softplus(z) - t * z) + 0.05 * F.sum(w**2)

    return loss


@pytest.mark.parametrize(
    "loss, start", [(_rosenbrock, [-1.2, 1.0] * 5), (_logistic(), [0.0] * 5)], ids=["R", "L"]
)
@pytest.mark.filterwarnings("ignore:LBFGS.update. update")
def test_finds_the_minimum_that_scipy_finds(loss, start):
    scipy = pytest.importorskip("scipy.optimize")

    def both(x):
        x = mpchain.Variable(x)
        y = loss(x)
        y.backward()
        return float(y.array), x.grad

    options = {"ftol": 1e-16, "gtol": 1e-12, "maxiter": 1000}
    expected = scipy.minimize(both, start, jac=True, method="L-BFGS-B", options=options)
    link = _vector(start)
    optimizer = optimizers.LBFGS().setup(link)
    for _ in range(150):
        optimizer.update(lambda: loss(link.x))
    assert float(loss(link.x).array) == pytest.approx(expected.fun, rel=1e-8, abs=1e-8)
    np.testing.assert_allclose(link.x.array, expected.x, rtol=1e-8, atol=1e-8)


def test_several_steps_in_an_update_are_those_of_as_many_updates():
    def run(n_updates, **options):
        link, calls = _vector([-1.2, 1.0] * 5), []
        optimizer = optimizers.LBFGS(memory=5, **options).setup(link)

        def loss():
            calls.append(0)
            return _rosenbrock(link.x)

        for _ in range(n_updates):
            optimizer.update(loss)
        return link.x.array, len(calls), optimizer.t

    one, many = run(20), run(2, max_iter=10)
    np.testing.assert_array_equal(one[0], many[0])
    # Only the first step of an update calls the function at its beginning.
    assert many[1] == one[1] - 18
    assert (one[2], many[2]) == (20, 2)


def test_an_update_ends_at_the_minimum():
    link = _vector([3.0, 5.0])
    optimizer = optimizers.LBFGS(max_iter=100).setup(link)
    optimizer.update(lambda: F.sum(link.x**2))
    assert not link.x.array.any() and optimizer.t == 1


def test_goes_on_after_it_was_saved(tmp_path):
    def points(link, optimizer, n):
        for _ in range(n):
            optimizer.update(lambda: _rosenbrock(link.x))
        return link.x.array.copy()

    link = _vector([-1.2, 1.0] * 2)
    optimizer = optimizers.LBFGS(memory=3).setup(link)
    points(link, optimizer, 6)
    for name, value in (("link", link), ("optimizer", optimizer)):
        serializers.save_npz(tmp_path / f"{name}.npz", value)
    expected = points(link, optimizer, 5)
    other = _vector(np.zeros(4))
    resumed = optimizers.LBFGS(memory=3).setup(other)
    serializers.load_npz(tmp_path / "link.npz", other)
    serializers.load_npz(tmp_path / "optimizer.npz", resumed)
    np.testing.assert_array_equal(points(other, resumed, 5), expected)
    assert resumed.t == 11


def test_restarts_where_the_memory_misleads():
    link = _vector([3.0, 4.0])
    optimizer = optimizers.LBFGS().setup(link)
    for _ in range(2):
        optimizer.update(lambda: F.sum(link.x**2 * np.array([1.0, 9.0])))
    for _ in range(30):
        optimizer.update(lambda: F.sum(F.sqrt(1 + (link.x - 2) ** 2)))
    np.testing.assert_allclose(link.x.array, [2, 2], atol=1e-6)


def test_warns_of_a_loss_that_changes_from_call_to_call():
    link, losses = _vector([1.0]), iter(range(1000))
    optimizer = optimizers.LBFGS().setup(link)
    with pytest.warns(RuntimeWarning, match="LBFGS.update: update 1 found no smaller loss"):
        optimizer.update(lambda: F.sum(link.x) + next(losses))
    np.testing.assert_array_equal(link.x.array, [1.0])


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_an_error_leaves_the_parameters_as_they_were(error):
    link, n_calls = _vector([3.0, 4.0]), iter(range(10))
    optimizer = optimizers.LBFGS().setup(link)

    def loss():
        if next(n_calls) == 1:
            raise error
        return F.sum(link.x**2)

    with pytest.raises(error):
        optimizer.update(loss)
    np.testing.assert_array_equal(link.x.array, [3.0, 4.0])


def test_what_is_refused():
    with pytest.raises(ValueError, match="LBFGS: memory must be at least 1, not 0"):
        optimizers.LBFGS(memory=0)
    with pytest.raises(ValueError, match="LBFGS: max_iter must be at least 1, not 0"):
        optimizers.LBFGS(max_iter=0)
    link = _vector([1.0])
    optimizer = optimizers.LBFGS().setup(link)
    with pytest.raises(TypeError, match=r"LBFGS\.update: lossfun is required"):
        optimizer.update()
    with pytest.raises(TypeError, match=r"lossfun must return a Variable, not float"):
        optimizer.update(lambda: 1.0)
    with pytest.raises(RuntimeError, match="the loss is nan where the step begins"):
        optimizer.update(lambda: F.sum(link.x) * np.nan)
    with pytest.raises(TypeError, match=r"LBFGS\.add_hook: LBFGS accepts no hooks"):
        optimizer.add_hook(optimizer_hooks.WeightDecay(0.1))
    optimizer.set_loss_scale(2)
    with pytest.raises(RuntimeError, match="a loss scale is set"):
        optimizer.update(lambda: F.sum(link.x))


@pytest.mark.parametrize("format", ["npz", "hdf5"])
def test_every_serializer_keeps_what_is_known_of_the_curvature(format, tmp_path):
    if format == "hdf5":
        pytest.importorskip("h5py")
    save, load = (getattr(serializers, f"{verb}_{format}") for verb in ("save", "load"))
    link, other = _vector([-1.2, 1.0] * 2), _vector([-1.2, 1.0] * 2)
    optimizer, fresh = (optimizers.LBFGS(memory=3).setup(x) for x in (link, other))
    save(tmp_path / "fresh", optimizer)
    load(tmp_path / "fresh", fresh)  # before the first step, there is no state
    for _ in range(4):
        optimizer.update(lambda: _rosenbrock(link.x))
        fresh.update(lambda: _rosenbrock(other.x))
    np.testing.assert_array_equal(other.x.array, link.x.array)
    save(tmp_path / "optimizer", optimizer)
    resumed = optimizers.LBFGS(memory=3).setup(other)
    load(tmp_path / "optimizer", resumed)
    for _ in range(3):
        optimizer.update(lambda: _rosenbrock(link.x))
        resumed.update(lambda: _rosenbrock(other.x))
    np.testing.assert_array_equal(other.x.array, link.x.array)
    assert resumed.t == 7
