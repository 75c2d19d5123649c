"""Runs the examples of guides, release notes and articles about Chainer; checks the results."""

import math

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import (
    Parameter,
    Reporter,
    Variable,
    datasets,
    iterators,
    optimizers,
    report,
    report_scope,
    serializers,
    training,
)
from mpchain.backends.cuda import to_cpu
from mpchain.dataset import concat_examples
from mpchain.training import extensions

pytestmark = pytest.mark.slow


def test_the_guides_first_derivatives():
    x_data = np.array([5], dtype=np.float32)
    x = Variable(x_data)
    y = x**2 - 2 * x + 1
    assert repr(y.array) == "array([16.], dtype=float32)"
    y.backward()
    assert repr(x.grad) == "array([8.], dtype=float32)"
    z = 2 * x
    y = x**2 - z + 1
    y.backward(retain_grad=True)
    assert repr(z.grad) == "array([-1.], dtype=float32)"
    x = Variable(np.array([[1, 2, 3], [4, 5, 6]], dtype=np.float32))
    y = x**2 - 2 * x + 1
    y.grad = np.ones((2, 3), dtype=np.float32)
    y.backward()
    expected = "array([[ 0.,  2.,  4.],\n       [ 6.,  8., 10.]], dtype=float32)"
    assert repr(x.grad) == expected


def test_the_guides_higher_order_derivatives():
    x = mpchain.Variable(np.array([[0, 2, 3], [4, 5, 6]], dtype=np.float32))
    y = x**3
    y.grad = np.ones((2, 3), dtype=np.float32)
    y.backward(enable_double_backprop=True)
    expected = "variable([[  0.,  12.,  27.],\n          [ 48.,  75., 108.]])"
    assert repr(x.grad_var) == expected
    assert x.grad_var.array is x.grad
    assert (x.grad == (3 * x**2).array).all()
    gx = x.grad_var
    x.cleargrad()
    gx.grad = np.ones((2, 3), dtype=np.float32)
    gx.backward()
    expected = "array([[ 0., 12., 18.],\n       [24., 30., 36.]], dtype=float32)"
    assert repr(x.grad) == expected
    assert (x.grad == (6 * x).array).all()


def test_the_release_notes_third_derivative():
    x = Variable(np.array([3.0], np.float32))
    y = x * x * x / 3
    (gx,) = mpchain.grad([y], [x], enable_double_backprop=True)
    (ggx,) = mpchain.grad([gx], [x], enable_double_backprop=True)
    np.testing.assert_allclose(gx.array, [9], rtol=1e-6)
    np.testing.assert_allclose(ggx.array, [6], rtol=1e-6)
    (gggx,) = mpchain.grad([ggx], [x], enable_double_backprop=True)
    assert str(gggx) == "variable([2.])"
    x.cleargrad()
    gx.backward()
    np.testing.assert_array_equal(x.grad_var.array, ggx.array)


def _penalty_setting():
    random = np.random.RandomState(0)
    W1, W2 = Parameter(random.randn(4, 3)), Parameter(random.randn(1, 4))
    x, x_tilde = random.randn(5, 3), Variable(random.randn(5, 3))
    u = random.uniform(size=(5, 1))

    def D(x):
        return F.linear(F.tanh(F.linear(x, W1)), W2)

    return D, (W1, W2), x, x_tilde, x + u * (x_tilde - x)


def _penalized_loss(D, x, x_tilde, gx_hat):
    penalty = F.sum((F.sqrt(F.sum(gx_hat * gx_hat, axis=1)) - 1) ** 2)
    return F.sum(D(x_tilde) - D(x)) + 10 * penalty


def test_the_release_notes_gradient_penalty_both_ways():
    D, (W1, W2), x, x_tilde, x_hat = _penalty_setting()
    y = D(x_hat)
    y.grad = np.ones(y.shape)
    x_hat.unchain()
    y.backward(enable_double_backprop=True)
    loss = _penalized_loss(D, x, x_tilde, x_hat.grad_var)
    W1.cleargrad()
    W2.cleargrad()
    loss.backward()
    by_backward = W1.grad, W2.grad

    W1.cleargrad()
    W2.cleargrad()
    (gx_hat,) = mpchain.grad([D(x_hat)], [x_hat], enable_double_backprop=True)
    _penalized_loss(D, x, x_tilde, gx_hat).backward()
    np.testing.assert_allclose(W1.grad, by_backward[0], rtol=1e-12)
    np.testing.assert_allclose(W2.grad, by_backward[1], rtol=1e-12)

    eps, step = 1e-6, np.random.RandomState(1).randn(4, 3)
    values = []
    for sign in (1, -1):
        W1.array = W1.array + sign * eps * step
        (gx_hat,) = mpchain.grad([D(x_hat)], [x_hat], enable_double_backprop=True)
        values.append(_penalized_loss(D, x, x_tilde, gx_hat).item())
        W1.array = W1.array - sign * eps * step
    numeric = (values[0] - values[1]) / (2 * eps)
    np.testing.assert_allclose((by_backward[0] * step).sum(), numeric, rtol=1e-6)


def test_the_double_backward_articles_first_two_snippets():
    random = np.random.RandomState(313)
    x = Variable(random.randn(2, 3))
    s = 1 / (1 + np.exp(-x.array))
    y = F.sigmoid(x)
    y.grad = np.ones((2, 3))
    y.backward()
    np.testing.assert_allclose(x.grad, s * (1 - s), rtol=1e-12)
    x.cleargrad()
    grads = mpchain.grad([F.sigmoid(x)], [x], set_grad=True, enable_double_backprop=True)
    assert x.grad_var is grads[0]
    np.testing.assert_allclose(x.grad, s * (1 - s), rtol=1e-12)


def test_the_double_backward_articles_third_snippet():
    random = np.random.RandomState(313)
    b, c, h, w = 16, 3, 32, 32
    x = Variable(random.randn(b, c, h, w))
    grads = mpchain.grad([F.sigmoid(x)], [x], enable_double_backprop=True)
    norms = [F.sum(g**2.0, (1, 2, 3)) ** 0.5 for g in grads]
    gp = sum(F.mean((norm - 1.0) ** 2.0) for norm in norms)
    gp.backward()
    s = 1 / (1 + np.exp(-x.array))
    g = s * (1 - s)
    norm = np.sqrt((g**2).sum(axis=(1, 2, 3), keepdims=True))
    expected = 2 * (norm - 1) / b * g / norm * g * (1 - 2 * s)
    np.testing.assert_allclose(x.grad, expected, rtol=1e-10)


def test_the_double_backward_articles_zero_centered_penalty():
    D, (W1, W2), x, _, _ = _penalty_setting()
    x_real = Variable(x)
    (g,) = mpchain.grad([D(x_real)], [x_real], enable_double_backprop=True)
    norms = F.sum(g**2.0, 1) ** 0.5
    (0.5 * 3.0 * F.mean(norms**2.0)).backward()
    # With D = w2 . tanh(W1 x): g = W1^T (w2 (1 - hidden^2)), and the penalty is 1.5 mean |g|^2.
    hidden = np.tanh(x @ W1.array.T)
    a = W2.array * (1 - hidden**2)
    expected = (2 * 1.5 / len(x)) * ((a @ W1.array) @ W1.array.T * (1 - hidden**2)).sum(0)
    np.testing.assert_allclose(W2.grad[0], expected, rtol=1e-10)


# The guides to the trainer follow. Digits of 8x8 pixels replace MNIST, and a table of tumors in the
# same form replaces a table of mushrooms. Most trainings have fewer epochs than in the guides.


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Changes to a temporary working directory for a program of the guides."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def digits():
    return datasets.get_digits(ndim=1)


class GuidesMLP(mpchain.Chain):
    def __init__(self, n_mid_units=100, n_out=10):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(None, n_mid_units)
            self.l2 = L.Linear(None, n_mid_units)
            self.l3 = L.Linear(None, n_out)

    def forward(self, x):
        h1 = F.relu(self.l1(x))
        h2 = F.relu(self.l2(h1))
        return self.l3(h2)


def _write_mushrooms(path):
    """Writes a table in the form of mushrooms.csv: the class, then 22 columns of letters."""
    sklearn = pytest.importorskip(
        "sklearn.datasets", reason="needs scikit-learn, whose package has the table"
    )
    table = sklearn.load_breast_cancer()
    letters = np.array(list("abcdefghij"))
    ranks = table.data[:, :22].argsort(axis=0).argsort(axis=0)
    columns = letters[ranks * len(letters) // len(ranks)]
    rows = np.column_stack([np.array(["e", "p"])[table.target], columns])
    lines = [",".join(["class", *map(str, range(22))])] + [",".join(row) for row in rows]
    path.write_text("\n".join(lines))


@pytest.mark.long
def test_chainer_at_a_glance(folder, capsys):
    pytest.importorskip("matplotlib")
    _write_mushrooms(folder / "mushrooms.csv")
    data_array = np.genfromtxt("mushrooms.csv", delimiter=",", dtype=str, skip_header=1)
    for col in range(data_array.shape[1]):
        data_array[:, col] = np.unique(data_array[:, col], return_inverse=True)[1]
    X = data_array[:, 1:].astype(np.float32)
    Y = data_array[:, 0].astype(np.int32)[:, None]
    train, test = datasets.split_dataset_random(
        datasets.TupleDataset(X, Y), int(data_array.shape[0] * 0.7)
    )
    train_iter = mpchain.iterators.SerialIterator(train, 20)
    test_iter = mpchain.iterators.SerialIterator(test, 20, repeat=False, shuffle=False)

    def MLP(n_units, n_out):
        layer = mpchain.Sequential(L.Linear(n_units), F.relu)
        model = layer.repeat(2)
        model.append(L.Linear(n_out))
        return model

    model = L.Classifier(MLP(44, 1), lossfun=F.sigmoid_cross_entropy, accfun=F.binary_accuracy)
    optimizer = mpchain.optimizers.SGD().setup(model)
    updater = training.StandardUpdater(train_iter, optimizer, device=-1)
    trainer = training.Trainer(updater, (6, "epoch"), out="result")
    trainer.extend(extensions.Evaluator(test_iter, model, device=-1))
    trainer.extend(extensions.DumpGraph("main/loss"))
    trainer.extend(extensions.snapshot(), trigger=(3, "epoch"))
    trainer.extend(extensions.LogReport())
    trainer.extend(
        extensions.PlotReport(["main/loss", "validation/main/loss"], "epoch", file_name="loss.png")
    )
    trainer.extend(
        extensions.PlotReport(
            ["main/accuracy", "validation/main/accuracy"], "epoch", file_name="accuracy.png"
        )
    )
    columns = ["epoch", "main/loss", "validation/main/loss"]
    columns += ["main/accuracy", "validation/main/accuracy", "elapsed_time"]
    trainer.extend(extensions.PrintReport(columns))
    trainer.run()

    x, t = test[np.random.randint(len(test))]
    predict = model.predictor(x[None]).array
    assert predict.shape == (1, 1) and t.shape == (1,)
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == columns
    assert [row.split()[0] for row in rows] == list("123456")
    assert float(rows[-1].split()[4]) > 0.8
    names = sorted(path.name for path in (folder / "result").iterdir() if path.name != "cg.png")
    n = [math.ceil(epochs * len(train) / 20) for epochs in (3, 6)]
    snapshots = [f"snapshot_iter_{i}" for i in n]
    assert names == sorted(["accuracy.png", "cg.dot", "log", "loss.png", *snapshots])


@pytest.mark.long
def test_mnist_using_trainer(folder, digits, capsys):
    pytest.importorskip("matplotlib")
    train, test = digits
    batchsize, gpu_id, max_epoch = 128, -1, 4
    train_iter = iterators.SerialIterator(train, batchsize)
    test_iter = iterators.SerialIterator(test, batchsize, False, False)
    model = L.Classifier(GuidesMLP())
    optimizer = optimizers.MomentumSGD()
    optimizer.setup(model)
    updater = training.updaters.StandardUpdater(train_iter, optimizer, device=gpu_id)
    trainer = training.Trainer(updater, (max_epoch, "epoch"), out="mnist_result")
    trainer.extend(extensions.LogReport())
    trainer.extend(extensions.snapshot(filename="snapshot_epoch{.updater.epoch}"))
    trainer.extend(
        extensions.snapshot_object(model.predictor, filename="model_epoch{.updater.epoch}")
    )
    trainer.extend(extensions.Evaluator(test_iter, model, device=gpu_id))
    columns = ["epoch", "main/loss", "main/accuracy", "validation/main/loss"]
    columns += ["validation/main/accuracy", "elapsed_time"]
    trainer.extend(extensions.PrintReport(columns))
    trainer.extend(
        extensions.PlotReport(
            ["main/loss", "validation/main/loss"], x_key="epoch", file_name="loss.png"
        )
    )
    trainer.extend(
        extensions.PlotReport(
            ["main/accuracy", "validation/main/accuracy"], x_key="epoch", file_name="accuracy.png"
        )
    )
    trainer.extend(extensions.DumpGraph("main/loss"))
    trainer.run()

    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == columns
    assert [row.split()[0] for row in rows] == list("1234")
    losses = [float(row.split()[1]) for row in rows]
    assert losses == sorted(losses, reverse=True)
    files = {path.name for path in (folder / "mnist_result").iterdir()}
    assert {"log", "cg.dot", "loss.png", "accuracy.png"} < files
    assert {f"{name}_epoch{i}" for name in ("snapshot", "model") for i in range(1, 5)} < files

    trained, model = model.predictor, GuidesMLP()
    serializers.load_npz("mnist_result/model_epoch4", model)
    x, t = test[0]
    y = model(x[None, ...])
    np.testing.assert_array_equal(y.array, trained(x[None]).array)
    assert y.array.argmax(axis=1)[0] == t


def test_mnist_with_a_manual_training_loop(folder, digits, capsys):
    train, test = digits
    batchsize, gpu_id, max_epoch = 128, -1, 10
    train_iter = iterators.SerialIterator(train, batchsize)
    test_iter = iterators.SerialIterator(test, batchsize, repeat=False, shuffle=False)
    model = GuidesMLP()
    optimizer = optimizers.MomentumSGD(lr=0.01, momentum=0.9)
    optimizer.setup(model)
    while train_iter.epoch < max_epoch:
        train_batch = train_iter.next()
        image_train, target_train = concat_examples(train_batch, gpu_id)
        prediction_train = model(image_train)
        loss = F.softmax_cross_entropy(prediction_train, target_train)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        if train_iter.is_new_epoch:
            train_loss = float(to_cpu(loss.array))
            print(f"epoch:{train_iter.epoch:02d} train_loss:{train_loss:.04f} ", end="")
            test_losses = []
            test_accuracies = []
            for test_batch in test_iter:
                image_test, target_test = concat_examples(test_batch, gpu_id)
                prediction_test = model(image_test)
                loss_test = F.softmax_cross_entropy(prediction_test, target_test)
                test_losses.append(to_cpu(loss_test.array))
                accuracy = F.accuracy(prediction_test, target_test)
                accuracy.to_cpu()
                test_accuracies.append(accuracy.array)
            test_iter.reset()
            print(f"val_loss:{np.mean(test_losses):.04f} ", end="")
            print(f"val_accuracy:{np.mean(test_accuracies):.04f}")
    lines = capsys.readouterr().out.splitlines()
    assert [line[:8] for line in lines] == [f"epoch:{i:02d}" for i in range(1, 11)]
    assert float(lines[-1].split(":")[-1]) > 0.85

    serializers.save_npz("my_mnist.model", model)
    model = GuidesMLP()
    serializers.load_npz("my_mnist.model", model)
    x, t = test[0]
    assert x.shape == (64,)
    x = x[None, ...]
    y = model(x)
    y = y.array
    pred_label = y.argmax(axis=1)
    assert pred_label[0] == t


@pytest.fixture
def small_trainer(folder):
    """Returns a function that makes a trainer for the code of the guide to extensions."""

    def make(stop_trigger, lr=1.0):
        x = np.random.RandomState(0).normal(size=(4, 3)).astype(np.float32)
        model = L.Classifier(L.Linear(3, 2))
        optimizer = optimizers.SGD(lr).setup(model)
        data = datasets.TupleDataset(x, np.zeros(4, np.int32))
        updater = training.StandardUpdater(iterators.SerialIterator(data, 2), optimizer)
        return training.Trainer(updater, stop_trigger)

    return make


def _lr_drop(trainer):
    trainer.updater.get_optimizer("main").lr *= 0.1


@training.make_extension(trigger=(10, "epoch"))
def _decorated_lr_drop(trainer):
    trainer.updater.get_optimizer("main").lr *= 0.1


def test_trainer_extensions_lr_drop(small_trainer):
    for extension, options in [
        (_lr_drop, {"trigger": (10, "epoch")}),
        (_decorated_lr_drop, {}),
    ]:
        trainer = small_trainer((25, "epoch"))
        trainer.extend(extension, **options)
        rates = []
        trainer.extend(lambda t, r=rates: r.append(t.updater.get_optimizer("main").lr), "look")
        trainer.run()
        np.testing.assert_allclose(rates, [1.0] * 19 + [0.1] * 20 + [0.01] * 11)


class GuidesPolynomialShift(training.Extension):
    def __init__(self, attr, power, stop_trigger, batchsize=None, len_dataset=None):
        self._attr = attr
        self._power = power
        self._init = None
        self._t = 0
        self._last_value = 0
        if stop_trigger[1] == "iteration":
            self._maxiter = stop_trigger[0]
        elif stop_trigger[1] == "epoch":
            if batchsize is None or len_dataset is None:
                raise ValueError("batchsize and len_dataset should be specified")
            n_iter_per_epoch = len_dataset / float(batchsize)
            self._maxiter = float(stop_trigger[0] * n_iter_per_epoch)

    def initialize(self, trainer):
        optimizer = trainer.updater.get_optimizer("main")
        if self._init is None:
            self._init = getattr(optimizer, self._attr)

    def __call__(self, trainer):
        self._t += 1
        optimizer = trainer.updater.get_optimizer("main")
        value = self._init * ((1 - (self._t / self._maxiter)) ** self._power)
        setattr(optimizer, self._attr, value)
        self._last_value = value

    def serialize(self, serializer):
        self._t = serializer("_t", self._t)
        self._last_value = serializer("_last_value", self._last_value)
        if isinstance(self._last_value, np.ndarray):
            self._last_value = self._last_value.item()


@pytest.mark.parametrize("stop_trigger", [(20, "iteration"), (10, "epoch")])
def test_trainer_extensions_polynomial_shift(small_trainer, folder, stop_trigger):
    def train(resume=None, lr=0.5):
        trainer = small_trainer(stop_trigger, lr)
        extension = GuidesPolynomialShift("lr", 0.5, stop_trigger, 2, 4)
        trainer.extend(extension)
        rates = []
        trainer.extend(lambda t: rates.append(t.updater.get_optimizer("main").lr), "look")
        trainer.extend(extensions.snapshot(), trigger=(7, "iteration"))
        if resume is not None:
            extension._init = 0.5
            serializers.load_npz(resume, trainer)
            assert extension._t == 7 and type(extension._last_value) is float
        trainer.run()
        return rates

    expected = [0.5 * math.sqrt(1 - t / 20) for t in range(1, 21)]
    np.testing.assert_allclose(train(), expected, rtol=1e-12, atol=1e-12)
    resumed = train("result/snapshot_iter_7")
    np.testing.assert_allclose(resumed, expected[7:], rtol=1e-12, atol=1e-12)
    assert trainer_extensions_agree(small_trainer, expected)


def trainer_extensions_agree(small_trainer, expected):
    """Returns whether mpchain's PolynomialShift has the rates of the guide's extension of that
    name."""
    trainer = small_trainer((20, "iteration"), 0.5)
    trainer.extend(extensions.PolynomialShift("lr", 0.5, 20))
    rates = []
    trainer.extend(lambda t: rates.append(t.updater.get_optimizer("main").lr), "look")
    trainer.run()
    return np.allclose(rates, expected, rtol=1e-12, atol=1e-12)


def _trained():
    model = L.Classifier(GuidesMLP(5, 3))
    optimizer = optimizers.MomentumSGD().setup(model)
    x = np.random.RandomState(0).normal(size=(4, 3)).astype(np.float32)
    data = datasets.TupleDataset(x, np.arange(4, dtype=np.int32) % 3)
    updater = training.StandardUpdater(iterators.SerialIterator(data, 2), optimizer)
    return model, optimizer, training.Trainer(updater, (2, "epoch"))


def _state(obj):
    serializer = serializers.DictionarySerializer()
    serializer.save(obj)
    volatile = ("elapsed_time", "_random")
    return {
        key: value.copy()
        for key, value in serializer.target.items()
        if not any(part in key for part in volatile)
    }


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_serializers(folder, kind):
    if kind == "hdf5":
        pytest.importorskip("h5py")
    save, load = getattr(serializers, f"save_{kind}"), getattr(serializers, f"load_{kind}")
    model, optimizer, trainer = _trained()
    trainer.run()
    for name, i in [("my.model", 0), ("my.state", 1), ("my.state", 2)]:
        source, others = (model, optimizer, trainer)[i], _trained()
        others[2].updater.update()  # this update creates parameters and momentum
        save(name, source)
        load(name, others[i])
        expected, loaded = _state(source), _state(others[i])
        assert expected.keys() == loaded.keys()
        for key, value in expected.items():
            np.testing.assert_array_equal(loaded[key], value)


class GuidesClassifier(mpchain.Chain):
    def __init__(self, predictor):
        super().__init__()
        with self.init_scope():
            self.predictor = predictor

    def forward(self, x, t):
        y = self.predictor(x)
        loss = F.softmax_cross_entropy(y, t)
        accuracy = F.accuracy(y, t)
        report({"loss": loss, "accuracy": accuracy}, self)
        return loss


class ReportingMLP(GuidesMLP):
    def forward(self, x):
        y = super().forward(x)
        report({"sum_y": F.sum(y)}, self)
        return y


def test_customize_your_own_logging(folder, digits, capsys):
    reporter = Reporter()
    observer = object()
    reporter.add_observer("my_observer:", observer)
    for function in (reporter.report, report):
        observation = {}
        with reporter.scope(observation):
            function({"x": 1}, observer)
        assert repr(observation) == "{'my_observer:/x': 1}"
    with reporter.scope(observation), report_scope(inner := {}):
        report({"x": 2})
    assert (observation, inner) == ({"my_observer:/x": 1}, {"x": 2})

    model = GuidesClassifier(ReportingMLP(100, 10))
    names = [name for name, observer in model.namedlinks(skipself=True)]
    assert names == ["/predictor", "/predictor/l1", "/predictor/l2", "/predictor/l3"]
    train, test = digits
    train_iter = iterators.SerialIterator(train, batch_size=100, shuffle=True)
    test_iter = iterators.SerialIterator(test, batch_size=100, repeat=False, shuffle=False)
    optimizer = optimizers.SGD()
    optimizer.setup(model)
    updater = training.StandardUpdater(train_iter, optimizer)
    trainer = training.Trainer(updater, (1, "epoch"), out="result")
    trainer.extend(extensions.Evaluator(test_iter, model))
    trainer.extend(extensions.LogReport())
    columns = ["epoch", "main/accuracy", "main/loss", "main/predictor/sum_y"]
    columns += ["validation/main/accuracy"]
    trainer.extend(extensions.PrintReport(columns))
    trainer.run()
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == columns
    # A column of the guide is as wide as its name, but has at least ten characters, and two spaces
    # follow.
    assert header.index("main/loss") == 10 + 2 + 13 + 2 and row[0] == "1"
    (entry,) = trainer.get_extension("LogReport").log
    assert row.split() == [f"{entry[name]:g}" for name in columns]
    assert {"validation/main/loss", "validation/main/predictor/sum_y"} < entry.keys()
