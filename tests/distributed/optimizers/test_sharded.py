"""Tests that the sharded optimizer computes the same as an ordinary optimizer, with a slice of the
state on each rank."""

import io

import numpy as np
import pytest

from mpchain import functions as F
from mpchain import links as L
from mpchain import optimizer_hooks, optimizers, serializers
from mpchain.configuration import mixed_bf16, using_config
from mpchain.distributed import create_multi_node_optimizer, create_sharded_optimizer
from mpchain.distributed.communicators import MpiCommunicator, NcclCommunicator
from mpchain.distributed.communicators.arrays import partition
from mpchain.distributed.gradients.scattering import ScatteringReducer
from mpchain.distributed.optimizers.slices import RanksOfParts
from mpchain.link import Chain, Sequential
from mpchain.optimizer import GradientMethod
from mpchain.update_rule import UpdateRule
from mpchain.utils.flat_layout import FlatLayout
from mpchain.variable import Parameter
from tests.benchmarks import state_memory
from tests.distributed import ranks
from tests.distributed.communicators.test_hosts import HOSTS
from tests.distributed.devices import assert_allclose, assert_array_equal, on_device, xp

ON_GPUS = True

ELEMENTWISE = {
    name: cls
    for name, cls in vars(optimizers).items()
    if isinstance(cls, type) and issubclass(cls, GradientMethod) and cls.rule.step is not None
}


class MLP(Chain):
    """A small model with a parameter without axes, and a parameter that is initialized by its first
    use."""

    def __init__(self, n_in=3):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(n_in, 4)
            self.scale = L.Scale(0, (), bias_term=True)
            self.l2 = L.Linear(None, 2)

    def loss(self, x, t):
        return F.mean_squared_error(self.l2(self.scale(F.tanh(self.l1(x)))), t)


def batch(seed, n=7):
    random = np.random.RandomState(seed)
    return on_device((random.uniform(-1, 1, (n, 3)), random.uniform(-1, 1, (n, 2))))


def train(optimizer, comm, n_steps, first=0, dtype=np.float64):
    np.random.seed(2)  # the seed is for parameters that are initialized later
    for step in range(first, first + n_steps):
        begin, end = partition(7, comm.rank, comm.size)
        x, t = (array[begin:end].astype(dtype) for array in batch(step))
        optimizer.n_samples = len(x)
        optimizer.update(optimizer.target.loss, x, t)


def make(create, actual, comm, dtype=np.float64, model=MLP):
    np.random.seed(1)
    with using_config("dtype", np.dtype(dtype)):
        return create(actual, comm).setup(on_device(model()))


def assert_same(model, expected):
    expected = dict(expected.namedparams())
    for name, param in model.namedparams():
        assert_array_equal(param.array, expected[name].array, err_msg=name)


def both(actual, comm, hooks=(), dtype=np.float64):
    """Returns an ordinary and a sharded optimizer of equal models."""
    pair = []
    for create in (create_multi_node_optimizer, create_sharded_optimizer):
        optimizer = make(create, actual(), comm, dtype)
        for hook in hooks:
            optimizer.add_hook(hook)
        pair.append(optimizer)
    return pair


@pytest.mark.parametrize("actual", ELEMENTWISE.values(), ids=ELEMENTWISE)
def test_any_elementwise_rule(comm, actual):
    plain, sharded = both(actual, comm)
    with using_config("dtype", np.dtype("float64")):
        train(plain, comm, 4)
        train(sharded, comm, 4)
    assert_same(sharded.target, plain.target)
    assert sharded.t == plain.t == 4


HOOKS = {
    "decay": optimizer_hooks.WeightDecay(0.01),
    "lasso": optimizer_hooks.Lasso(0.01),
    "hard": optimizer_hooks.GradientHardClipping(-0.1, 0.1),
    "clipping": optimizer_hooks.GradientClipping(0.1),
    "LARS": optimizer_hooks.GradientLARS(),
}


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
def test_hooks_see_the_whole(comm, hook):
    plain, sharded = both(optimizers.Adam, comm, [hook])
    with using_config("dtype", np.dtype("float64")):
        train(plain, comm, 3)
        train(sharded, comm, 3)
    if isinstance(hook, optimizer_hooks.GradientClipping):  # norms of slices are added
        expected = dict(plain.target.namedparams())
        for name, param in sharded.target.namedparams():
            assert_allclose(param.array, expected[name].array, rtol=1e-13, err_msg=name)
    else:
        assert_same(sharded.target, plain.target)


def test_hooks_after_the_update_see_all_parameters_updated(comm):
    def norm(optimizer):
        norms.append([float((param.array**2).sum()) for param in optimizer.target.params()])

    norms = []
    plain, sharded = both(optimizers.Adam, comm)
    for optimizer in (plain, sharded):
        optimizer.add_hook(norm, timing="post")
        with using_config("dtype", np.dtype("float64")):
            train(optimizer, comm, 3)
    assert norms[:3] == norms[3:]


def test_a_hook_after_the_update_of_one_parameter(comm):
    sharded = make(create_sharded_optimizer, optimizers.Adam(), comm)
    rule = sharded.target.l1.W.update_rule
    rule.add_hook(lambda rule, param: None, "late", "post")
    with (
        using_config("dtype", np.dtype("float64")),
        pytest.raises(
            ValueError, match="a hook with timing 'post', but each rank updates only a part"
        ),
    ):
        train(sharded, comm, 1)


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), mixed_bf16.dtype], ids=str)
def test_float32_copies_of_half_precision_parameters(comm, dtype):
    plain, sharded = both(optimizers.Adam, comm, [HOOKS["decay"]], dtype)
    for optimizer in (plain, sharded):
        optimizer.use_fp32_update()
        optimizer.loss_scaling(scale=128.0)
        with using_config("dtype", dtype):
            train(optimizer, comm, 5, dtype=dtype)
    assert sharded.target.l1.W.dtype == dtype
    assert_same(sharded.target, plain.target)


def test_each_rank_holds_its_part(comm):
    sharded = make(create_sharded_optimizer, optimizers.Adam(), comm)
    with using_config("dtype", np.dtype("float64")):
        train(sharded, comm, 2)
    state = sharded.local_state()
    assert state.keys() == dict(sharded.target.namedparams()).keys()
    everywhere = comm.allgather_obj(state)
    for name, param in sharded.target.namedparams():
        ranges = [(part[name]["start"], part[name]["stop"]) for part in everywhere]
        assert [i for start, stop in ranges for i in range(start, stop)] == list(range(param.size))
        assert state[name]["shape"] == param.shape and state[name]["t"] == 2
        arrays = state[name]["state"]
        start, stop = ranges[comm.rank]
        assert {k: v.shape for k, v in arrays.items()} == dict.fromkeys("mv", (stop - start,))
    sizes = [sum(p["stop"] - p["start"] for p in part.values()) for part in everywhere]
    # There are two groups of parameters: one is initialized at setup, the other by the first step.
    assert max(sizes) - min(sizes) <= 2 * comm.size


def test_saved_whole_and_loaded_by_any(comm):
    plain, sharded = both(optimizers.AMSGrad, comm)
    with using_config("dtype", np.dtype("float64")):
        train(plain, comm, 3)
        train(sharded, comm, 3)
        root = comm.size - 1
        sharded.gather_state(root)
        file = io.BytesIO()
        if comm.rank == root:
            serializers.save_npz(file, sharded)
            reference = io.BytesIO()
            serializers.save_npz(reference, plain)
            file.seek(0), reference.seek(0)
            with np.load(file) as saved, np.load(reference) as expected:
                assert set(saved) == set(expected)
                for key in set(expected) - {"exchange/draws"}:  # each optimizer has its own key
                    assert_array_equal(saved[key], expected[key], err_msg=key)
        data = comm.bcast_obj(file.getvalue(), root=root)
        train(plain, comm, 3, first=3)
        for create in (create_multi_node_optimizer, create_sharded_optimizer):
            restored = make(create, optimizers.AMSGrad(), comm)
            restored.target.copyparams(sharded.target)
            for _ in range(2):  # the second time, a sharded optimizer holds divided state
                serializers.load_npz(io.BytesIO(data), restored)
                restored.target.copyparams(sharded.target)
                train(restored, comm, 3, first=3)
            assert_same(restored.target, plain.target)


@pytest.mark.parametrize("n_steps", [0, 2])
def test_nothing_changes_where_a_file_lacks_arrays(comm, n_steps):
    half = np.dtype(np.float16)
    plain, sharded = both(optimizers.Adam, comm, dtype=half)
    with using_config("dtype", half):
        for optimizer, n in (plain, n_steps), (sharded, 3):
            optimizer.use_fp32_update()
            optimizer.loss_scaling(scale=128.0)
            train(optimizer, comm, n, dtype=half)
    stored = serializers.DictionarySerializer()
    stored.save(plain)
    stored.target.pop("l1/b/t")
    file = io.BytesIO()
    np.savez(file, **stored.target)
    file.seek(0)
    parts = sharded.local_state()
    with pytest.raises(serializers.MissingKeyError, match=r"are missing: .*l1/b/t"):
        serializers.load_npz(file, sharded)
    after = sharded.local_state()
    for name, part in parts.items():
        assert part["state"].keys() >= {"m", "v", "fp32_param"} and part["t"] == 3
        assert after[name]["t"] == 3
        for key, value in part["state"].items():
            assert_array_equal(after[name]["state"][key], value)


def test_saved_and_loaded_in_parts(comm):
    sharded = make(create_sharded_optimizer, optimizers.Adam(), comm)
    with using_config("dtype", np.dtype("float64")):
        train(sharded, comm, 3)
        other = make(create_sharded_optimizer, optimizers.Adam(), comm)
        train(other, comm, 1)
        other.target.copyparams(sharded.target)
        other.set_local_state(sharded.local_state())
        other.actual_optimizer.t = sharded.t
        train(sharded, comm, 2, first=3)
        train(other, comm, 2, first=3)
    assert_same(other.target, sharded.target)


def test_wrong_parts(comm):
    sharded = make(create_sharded_optimizer, optimizers.Adam(), comm)
    parts = sharded.local_state()
    with pytest.raises(
        ValueError, match="parts must have the names of the model's parameters, but differ in"
    ):
        sharded.set_local_state({})
    parts["/l1/W"]["start"] += 1
    with pytest.raises(
        ValueError, match=r"this rank holds elements \(\d+, \d+\) of /l1/W, but parts has"
    ):
        sharded.set_local_state(parts)


def test_saving_what_was_not_gathered(comm):
    sharded = make(create_sharded_optimizer, optimizers.Adam(), comm)
    with using_config("dtype", np.dtype("float64")):
        train(sharded, comm, 1)
    if comm.size == 1:  # one rank has nothing to gather
        serializers.save_npz(io.BytesIO(), sharded)
        return
    with pytest.raises(RuntimeError, match=r"call gather_state\(\) on all ranks before"):
        serializers.save_npz(io.BytesIO(), sharded)


def test_links_that_are_added_later(comm):
    results = []
    for create in (create_multi_node_optimizer, create_sharded_optimizer):
        optimizer = make(create, optimizers.Adam(), comm)
        model = optimizer.target
        with using_config("dtype", np.dtype("float64")):
            train(optimizer, comm, 2)
            with model.init_scope():
                model.l3 = on_device(L.Linear(2, 2))
            for param in model.l3.params():
                param.update_rule = optimizer.create_update_rule()
            model.loss = lambda x, t, m=model: F.mean_squared_error(m.l3(m.l1(x)[:, :2]), t)
            train(optimizer, comm, 3, first=2)
        results.append(model)
    assert_same(*results)


def test_rules_that_look_at_the_whole_parameter(comm):
    with pytest.raises(
        ValueError, match=r"LAMBRule, which updates /l1/W, does not compute each element separately"
    ):
        create_sharded_optimizer(optimizers.LAMB(), comm).setup(L.Classifier(MLP()).predictor)


def test_a_rule_that_updates_in_its_own_way(comm):
    class WholeRule(optimizers.SGDRule):
        def update(self, param):
            param.array[...] = 0

    class Whole(GradientMethod):
        rule = WholeRule

    with pytest.raises(ValueError, match="WholeRule, which updates /l1/W, overrides update"):
        create_sharded_optimizer(Whole(), comm).setup(MLP())


def test_a_state_that_is_changed_after_it_was_loaded(comm):
    """Several ranks must gather the changed state before it is saved."""
    sharded = make(create_sharded_optimizer, optimizers.MomentumSGD(), comm)
    with using_config("dtype", np.dtype("float64")):
        train(sharded, comm, 1)
    sharded.gather_state()
    file = io.BytesIO()
    if comm.rank == 0:
        serializers.save_npz(file, sharded)
    serializers.load_npz(io.BytesIO(comm.bcast_obj(file.getvalue(), root=0)), sharded)
    serializers.save_npz(io.BytesIO(), sharded)  # all ranks have loaded the whole state
    for param in sharded.target.params():
        param.update_rule.state["v"] += 1
    if comm.size == 1:
        return
    with pytest.raises(RuntimeError, match=r"call gather_state\(\) on all ranks before"):
        serializers.save_npz(io.BytesIO(), sharded)


def test_a_rule_of_ones_own(comm):
    class OwnRule(UpdateRule):
        is_elementwise = True

        def init_state(self, param):
            self.state["h"] = xp.zeros_like(param.array)
            self.state["note"] = "kept as it is"

        def update_core(self, param):
            self.state["h"] += param.grad
            param.array -= 0.1 * self.state["h"]

    class Own(GradientMethod):
        def create_update_rule(self):
            return OwnRule()

    plain, sharded = both(Own, comm)
    with using_config("dtype", np.dtype("float64")):
        train(plain, comm, 3)
        train(sharded, comm, 3)
    assert_same(sharded.target, plain.target)
    sharded.gather_state()
    assert sharded.local_state()["/l1/W"]["state"]["note"] == "kept as it is"


def test_parameters_that_are_not_updated(comm):
    plain, sharded = both(optimizers.Adam, comm)
    for optimizer in (plain, sharded):
        optimizer.target.l1.disable_update()
        before = optimizer.target.l1.W.array.copy()
        with using_config("dtype", np.dtype("float64")):
            train(optimizer, comm, 2)
        assert_array_equal(optimizer.target.l1.W.array, before)
    assert_same(sharded.target, plain.target)


def test_an_array_that_is_not_contiguous(comm):
    plain, sharded = both(optimizers.Adam, comm)
    for optimizer in (plain, sharded):
        weight = optimizer.target.l1.W
        weight.array = xp.asfortranarray(weight.array)
        with using_config("dtype", np.dtype("float64")):
            train(optimizer, comm, 2)
    assert_same(sharded.target, plain.target)


@pytest.mark.long
def test_a_quarter_of_the_state_on_each_of_four_ranks(needs_mpirun):
    plain, sharded = state_memory.measure(n_ranks=4, n_units=50)
    assert len(plain) == len(sharded) == 4 and len(set(plain)) == 1
    assert max(sharded) / plain[0] == pytest.approx(1 / 4, rel=0.01)


def test_memory_of_this_run(comm):
    sizes = {
        sharded: comm.allgather_obj(state_memory.bytes_of_state(comm, sharded, n_units=20))
        for sharded in (False, True)
    }
    assert sum(sizes[True]) == sizes[False][0] == sizes[False][-1]
    assert ranks.ROOT.is_dir()


@pytest.fixture(params=["one host", "a host each", "pairs", "alternating"])
def on_hosts(request, comm, split_hosts):
    """Returns a communicator whose ranks are on the given imitated hosts."""
    if comm.mpi_comm is None or isinstance(comm, NcclCommunicator):
        pytest.skip("needs MPI")
    split_hosts(HOSTS[request.param])
    with MpiCommunicator(comm.mpi_comm) as made:
        yield made


def train_alone(actual, hooks, n_steps):
    """Returns the model after training in one process."""
    optimizer = make(lambda actual, comm: actual, actual(), None)
    for hook in hooks:
        optimizer.add_hook(hook)
    np.random.seed(2)  # the seed is for parameters that are initialized later
    for step in range(n_steps):
        optimizer.update(optimizer.target.loss, *batch(step))
    return optimizer.target


@pytest.mark.parametrize(
    ("hooks", "bucket_bytes"),
    [(["decay", "clipping"], 64), (["decay", "clipping"], 4 << 20), (["clipping", "decay"], 64)],
    ids=str,
)
def test_hosts_compute_what_one_process_does(on_hosts, hooks, bucket_bytes, set_limits):
    """There is one bucket, or there are several; the last pieces of a bucket are partly or wholly
    beyond its end."""
    set_limits(sharded_bytes=bucket_bytes)
    hooks = [HOOKS[name] for name in hooks]
    with using_config("dtype", np.dtype("float64")):
        alone = train_alone(optimizers.Adam, hooks, 4)
        plain, sharded = both(optimizers.Adam, on_hosts, hooks)
        train(plain, on_hosts, 4)
        train(sharded, on_hosts, 4)
    expected = dict(alone.namedparams())
    alike = dict(plain.target.namedparams())
    for name, param in sharded.target.namedparams():
        assert_allclose(param.array, alike[name].array, rtol=1e-14, err_msg=name)
        assert_allclose(param.array, expected[name].array, rtol=1e-12, err_msg=name)
        assert (param.grad is None) == (on_hosts.size > 1)


@pytest.mark.parametrize("scale", [None, 128.0])
@pytest.mark.parametrize("hooks", [["clipping"], ["decay", "clipping"]], ids=str)
def test_norm_travels_with_all_else_if_it_is_that_of_gradients_as_they_are(
    on_hosts, hooks, scale, monkeypatch
):
    sums, iallreduce = [], RanksOfParts.iallreduce

    def noted(self, x):
        sums.append(self.known is None)
        return iallreduce(self, x)

    monkeypatch.setattr(RanksOfParts, "iallreduce", noted)
    sharded = make(create_sharded_optimizer, optimizers.Adam(), on_hosts)
    for name in hooks:
        sharded.add_hook(HOOKS[name])
    sharded.set_loss_scale(scale)
    with using_config("dtype", np.dtype("float64")):
        train(sharded, on_hosts, 3)
    are_as_they_were = hooks == ["clipping"] and scale is None
    assert sums == [not are_as_they_were] * (3 if on_hosts.size > 1 else 0)


def test_norm_travels_only_if_all_ranks_ask(on_hosts):
    reducer, param = ScatteringReducer(on_hosts), Parameter(np.zeros(7))
    layout = FlatLayout(param.dtype)
    layout.append("/W", param.shape)
    reducer.layouts = [layout]
    reducer.watch({"/W": param})
    found = []
    for reducer.needs_norm in (True, on_hosts.rank == 0, False):
        reducer.begin(1)
        param.grad = np.full(7, on_hosts.rank + 1.0)
        reducer.finish()
        found.append(reducer.square_norm)
    assert found[1:] == [None, None]
    if on_hosts.size > 1:
        assert_allclose(found[0], 7 * ((on_hosts.size + 1) / 2) ** 2, rtol=1e-14)


def test_a_hook_that_needs_whole_gradients(on_hosts, capfd):
    """All ranks get whole gradients, and the reason is printed once."""
    seen = []

    def note(optimizer):
        seen.append({name: p.grad.copy() for name, p in optimizer.target.namedparams()})

    with using_config("dtype", np.dtype("float64")):
        for optimizer in (pair := both(optimizers.Adam, on_hosts)):
            train(optimizer, on_hosts, 1)
            optimizer.add_hook(note)
            train(optimizer, on_hosts, 2, first=1)
            assert all(param.grad is not None for param in optimizer.target.params())
            optimizer.remove_hook("note")
            train(optimizer, on_hosts, 1, first=3)
    plain, sharded = pair
    assert_same(sharded.target, plain.target)
    np.testing.assert_equal(seen[2:], seen[:2])
    assert all((param.grad is None) == (on_hosts.size > 1) for param in sharded.target.params())
    said = capfd.readouterr().err.count("hook note does not declare that it works on parts")
    assert said == (on_hosts.rank == 0 and on_hosts.size > 1)


def test_one_rank_asks_for_whole_gradients(on_hosts):
    with using_config("dtype", np.dtype("float64")):
        plain, sharded = both(optimizers.Adam, on_hosts)
        sharded.whole_gradients = on_hosts.rank == on_hosts.size - 1
        train(plain, on_hosts, 2)
        train(sharded, on_hosts, 2)
    expected = dict(plain.target.namedparams())
    for name, param in sharded.target.namedparams():
        assert_array_equal(param.grad, expected[name].grad, err_msg=name)


@pytest.mark.parametrize(
    "hook", [optimizer_hooks.GradientNoise(0.1), optimizer_hooks.GradientLARS()]
)
def test_noise_and_layerwise_rates(on_hosts, hook):
    with using_config("dtype", np.dtype("float64")):
        plain, sharded = both(optimizers.Adam, on_hosts, [hook])
        for optimizer in (plain, sharded):
            train(optimizer, on_hosts, 3)
    assert_same(sharded.target, plain.target)


def test_gradients_after_an_update(comm):
    """A slice of a gradient is not shown as the gradient; on one rank, gradients are whole."""
    with using_config("dtype", np.dtype("float64")):
        _, sharded = both(optimizers.Adam, comm)
        train(sharded, comm, 2)
    assert {param.grad is None for param in sharded.target.params()} == {comm.size > 1}


def test_whole_gradients_on_request(comm):
    with using_config("dtype", np.dtype("float64")):
        plain, sharded = both(optimizers.Adam, comm)
        sharded.whole_gradients = True
        train(plain, comm, 2)
        train(sharded, comm, 2)
    expected = dict(plain.target.namedparams())
    for name, param in sharded.target.namedparams():
        assert_array_equal(param.grad, expected[name].grad, err_msg=name)


def test_an_optimizer_that_updates_in_its_own_way(on_hosts, capfd):
    class Halved(optimizers.SGD):
        def call_hooks(self, timing="pre"):
            if timing == "pre":
                for param in self.target.params():
                    param.grad = param.grad / 2
            super().call_hooks(timing)

    with using_config("dtype", np.dtype("float64")):
        plain, sharded = both(Halved, on_hosts)
        train(plain, on_hosts, 3)
        train(sharded, on_hosts, 3)
    assert_same(sharded.target, plain.target)
    said = capfd.readouterr().err.count("Halved overrides call_hooks")
    assert said == (on_hosts.rank == 0 and on_hosts.size > 1)


def test_a_hook_that_derives_from_one_for_parts(comm):
    class Normed(optimizer_hooks.WeightDecay):
        def new_grad(self, xp, p, g, rule, param):
            return g / xp.sqrt((g * g).sum())

    with using_config("dtype", np.dtype("float64")):
        plain, sharded = both(optimizers.Adam, comm, [Normed(0.1)])
        train(plain, comm, 3)
        train(sharded, comm, 3)
    assert_same(sharded.target, plain.target)


def test_overflow_in_the_part_of_one_rank(on_hosts):
    """All ranks skip the step."""

    def spoilt(x, t):
        loss = optimizer.target.loss(x, t)
        return loss + F.sum(optimizer.target.l1.b * np.array([0, 0, 0, np.inf]))

    with using_config("dtype", np.dtype("float64")):
        plain, sharded = both(optimizers.Adam, on_hosts)
        for optimizer in (plain, sharded):
            optimizer.loss_scaling(interval=4)
            optimizer.actual_optimizer._loss_scale = 8.0
            train(optimizer, on_hosts, 1)
            with pytest.warns(
                RuntimeWarning, match="step 2 is skipped, because with loss scale 16"
            ):
                optimizer.update(spoilt, *batch(1))
            train(optimizer, on_hosts, 2, first=2)
    assert plain.loss_scale == sharded.loss_scale < 16
    assert_same(sharded.target, plain.target)


def test_names_of_parameters_may_change(on_hosts):
    """Slices belong to parameters, not to names; two links of equal shapes exchange their names
    here."""

    class Two(Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.a, self.b = L.Linear(3, 2), L.Linear(3, 2)
            self.order = [self.a, self.b]

        def loss(self, x, t):
            first, second = self.order
            return F.mean_squared_error(first(x) + F.tanh(2 * second(x)), t)

    results = []
    for create in (create_multi_node_optimizer, create_sharded_optimizer):
        with using_config("dtype", np.dtype("float64")):
            optimizer = make(create, optimizers.Adam(), on_hosts, model=Two)
            model = optimizer.target
            train(optimizer, on_hosts, 2)
            del model.a, model.b
            with model.init_scope():
                model.b, model.a = model.order
            train(optimizer, on_hosts, 2, first=2)
        results.append(model)
    assert_same(*results)


@pytest.mark.parametrize("hooks", [[], [optimizer_hooks.GradientClipping(0.1)]], ids=len)
def test_reproducible(comm, hooks):
    """All bits of the parameters equal those of an ordinary optimizer."""
    if comm.mpi_comm is None or isinstance(comm, NcclCommunicator):
        pytest.skip("needs MPI")
    with MpiCommunicator(comm.mpi_comm) as made, using_config("dtype", np.dtype("float64")):
        made.micro_shards = 2 * comm.size
        plain, sharded = both(optimizers.Adam, made, hooks)
        train(plain, made, 3)
        train(sharded, made, 3)
    assert_same(sharded.target, plain.target)


def test_a_file_that_lacks_everything_changes_nothing(comm, tmp_path):
    """The file also lacks parameters that come after so many missing names that the check has
    stopped."""
    model = on_device(Sequential(*[L.Linear(2, 2) for _ in range(12)]))
    optimizer = create_sharded_optimizer(optimizers.Adam(), comm).setup(model)
    optimizer.update(lambda: F.sum(model(xp.ones((1, 2), np.float32)) ** 2))
    rules = [param.update_rule for _, param in sorted(model.namedparams())]

    def states():
        return [
            (
                rule.t,
                {name: x.copy() if hasattr(x, "copy") else x for name, x in rule.state.items()},
            )
            for rule in rules
        ]

    before = states()
    serializers.save_npz(tmp_path / "empty.npz", Sequential())
    with pytest.raises(serializers.SerializationError, match="missing"):
        serializers.load_npz(tmp_path / "empty.npz", optimizer)
    for (t, state), (t_before, state_before) in zip(states(), before, strict=True):
        assert t == t_before and state.keys() == state_before.keys()
        for name, value in state.items():
            assert_array_equal(value, state_before[name])
