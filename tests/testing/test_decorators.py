"""Tests decorators of tests and other tools, under pytest and unittest."""

import os
import re
import subprocess
import sys
import unittest
import unittest.mock
import warnings

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.initializers
import mpchain.links
from mpchain import testing
from mpchain.backends import cuda
from mpchain.testing import condition

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]

BC = testing.BackendConfig({}).get_func_str()


@pytest.fixture
def suite(pytester):
    """Returns a function that runs a test file in its own folder, and returns the outcomes and the
    marks by test."""

    def run(body, *options):
        head = "import unittest, functools, numpy as np\nfrom mpchain import testing\n"
        head += "from mpchain.testing import attr, condition\n"
        pytester.makepyfile(test_suite=head + body)
        names = "gpu multi_gpu cudnn slow ideep chainerx"
        pytester.makeini("[pytest]\nmarkers =" + names.replace(" ", "\n ").join(["\n ", "\n"]))
        items, _ = pytester.inline_genitems("-p", "no:cacheprovider", *options)
        marks = {
            item.nodeid.split("::", 1)[1]: {m.name for m in item.own_markers} for item in items
        }
        reports = pytester.inline_run("-p", "no:cacheprovider", *options).getreports(
            "pytest_runtest_logreport"
        )
        outcomes = {}
        for report in reports:
            if report.when == "call" or report.outcome != "passed":
                outcomes[report.nodeid.split("::", 1)[1]] = report.outcome
        return outcomes, marks

    return run


PARAMETERIZED = """
def f(x):
    return x

@testing.parameterize(
    {"shape": (1,), "dtype": np.float16, "f": f, "text": "it's"},
    {"shape": (), "dtype": np.dtype("f"), "f": lambda x: x, "text": "x" * 200},
)
class TestPlain(unittest.TestCase):
    def test_it(self):
        assert self.f(3) == 3 and isinstance(self.shape, tuple)

@testing.parameterize_pytest("a, b", [(1, 1), (2, 3)])
class TestFixture:
    def test_it(self, tmp_path):
        assert tmp_path.exists() and self.a == self.b

@testing.parameterize({"a": 1}, {"b": 2})
@testing.parameterize({"a": 3, "c": 4})
class TestTwice:
    def test_it(self):
        assert self.c == 4 and (self.a == 1 or (self.a, self.b) == (3, 2))
"""


def test_parameterized_classes(suite):
    outcomes, _ = suite(PARAMETERIZED)
    x = "x" * 47
    assert outcomes == {
        'TestPlain_param_0_{dtype=float16, f=f, shape=(1,), text="it\'s"}::test_it': "passed",
        "TestPlain_param_1_{dtype=dtype('float32'), f=<lambda>, shape=(), "
        f"text='{x}...{x}x'}}::test_it": "passed",
        "TestFixture_param_0_{a=1, b=1}::test_it": "passed",
        "TestFixture_param_1_{a=2, b=3}::test_it": "failed",
        "TestTwice_param_0_{a=3, c=4}_param_0_{a=1}::test_it": "passed",
        "TestTwice_param_0_{a=3, c=4}_param_1_{b=2}::test_it": "passed",
    }


def test_products_and_pytest_parameters():
    assert testing.product({"b": "xy".split(), "a": [1, 2]}) == [
        {"a": 1, "b": "xy"},
        {"a": 2, "b": "xy"},
    ]
    expected = [{"a": 1, "b": 3}, {"a": 1, "b": 4}]
    assert testing.product_dict([{"a": 1}], [{"b": 3}, {"b": 4}]) == expected
    assert testing.product([[{"a": 1}], [{"b": 3}, {"b": 4}]]) == expected
    assert testing.from_pytest_parameterize("a", [(1, 2)]) == [{"a": (1, 2)}]
    assert testing.from_pytest_parameterize(["a", "b"], [(1, 2)]) == [{"a": 1, "b": 2}]
    with pytest.raises(ValueError, match=r"a value for each of \['a', 'b'\]: \(1,\)"):
        testing.from_pytest_parameterize("a,b", [(1,)])
    with pytest.raises(TypeError, match="product: b must be a list of values, not 'xy'"):
        testing.product({"b": "xy"})
    with pytest.raises(TypeError, match="a dict of lists or a list of lists of dicts"):
        testing.product([[1, 2]])
    with pytest.raises(TypeError, match="a test class is needed, not function"):
        testing.parameterize({})(lambda: None)


INJECTED = """
@testing.parameterize({"a": 1})
@testing.inject_backend_tests(None, [{}, {"use_cuda": True, "use_cudnn": "always"}])
class TestAll(unittest.TestCase):
    def test_one(self, backend_config):
        with backend_config:
            assert backend_config.xp is np and self.a == 1

CHAINERX = {"use_chainerx": True, "chainerx_device": "native:0"}

@testing.inject_backend_tests("test_one", [{}])
@testing.parameterize({"a": 1})
class TestGenerated:
    def test_one(self, config):
        pass

    def test_two(self):
        pass

@testing.inject_backend_tests("test_one", [{"use_ideep": "always"}, CHAINERX])
class TestSome:
    @attr.slow
    def test_one(self, backend_config, tmp_path):
        assert backend_config.device.name == "@intel64" and tmp_path.exists()

    def test_two(self):
        pass

@testing.inject_backend_tests(["test_two"], [{"use_ideep": "always"}])
@testing.inject_backend_tests(["test_one"], [{}])
class TestEach:
    def test_one(self, config):
        assert config.device.name == "@numpy"

    def test_two(self, config):
        assert config.device.name == "@intel64"
"""


def test_injected_backends(suite):
    outcomes, marks = suite(INJECTED)
    gpu = testing.BackendConfig({"use_cuda": True, "use_cudnn": "always"}).get_func_str()
    ideep = testing.BackendConfig({"use_ideep": "always"}).get_func_str()
    chainerx = testing.BackendConfig({"use_chainerx": True, "chainerx_device": "native:0"})
    chainerx = chainerx.get_func_str()
    on_gpu = f"TestAll_{gpu}_param_0_{{a=1}}::test_one"
    outcomes.pop(on_gpu)
    assert marks[on_gpu] >= {"gpu", "cudnn"}
    assert outcomes == {
        f"TestAll_{BC}_param_0_{{a=1}}::test_one": "passed",
        f"TestSome_{ideep}::test_one": "passed",
        f"TestSome_{chainerx}::test_one": "skipped",
        "TestSome_other::test_two": "passed",
        f"TestGenerated_param_0_{{a=1}}_{BC}::test_one": "passed",
        "TestGenerated_param_0_{a=1}::test_two": "passed",
        f"TestEach_{BC}::test_one": "passed",
        f"TestEach_other_{ideep}::test_two": "passed",
    }
    assert marks[f"TestSome_{ideep}::test_one"] == {"slow", "ideep"}
    with pytest.raises(AttributeError, match="TestNone has no method test_one"):
        testing.inject_backend_tests("test_one", [{}])(type("TestNone", (), {}))


def test_the_name_of_a_backend():
    assert BC == (
        "use_chainerx_false__chainerx_device_None__use_cuda_false__cuda_device_None__"
        "use_cudnn_never__cudnn_deterministic_false__autotune_false__"
        "cudnn_fast_batch_normalization_false__use_ideep_never"
    )


def test_backend_config():
    config = testing.BackendConfig({"use_cudnn": "auto", "autotune": True})
    assert repr(config).startswith(
        "<BackendConfig use_chainerx=False chainerx_device=None use_cuda"
    )
    before = mpchain.config.use_cudnn, mpchain.config.autotune
    with config, config:
        assert (mpchain.config.use_cudnn, mpchain.config.autotune) == ("auto", True)
    assert (mpchain.config.use_cudnn, mpchain.config.autotune) == before
    x = np.ones(2)
    assert config.get_array(x) is x and config.device.name == "@numpy" and config.xp is np
    assert testing.BackendConfig({"use_ideep": "always"}).device.name == "@intel64"
    assert testing.BackendConfig({"use_cuda": True}).cuda_device == 0
    with pytest.raises(ValueError, match="parameter nope is not defined"):
        testing.BackendConfig({"nope": 1})
    with pytest.raises(RuntimeError, match="has no ChainerX"):
        testing.BackendConfig({"use_chainerx": True, "chainerx_device": "native:0"}).device


@pytest.mark.gpu
def test_backend_config_of_a_gpu():
    config = testing.BackendConfig({"use_cuda": True})
    with config:
        assert cuda.is_gpu_array(config.get_array(np.ones(2))) and config.device.name == "@cupy:0"


MARKED = """
@attr.chainerx
class TestClass:
    def test_it(self):
        assert 0

class TestMarks(unittest.TestCase):
    @attr.gpu
    def test_gpu(self): pass
    @attr.multi_gpu(3)
    def test_multi_gpu(self): pass
    @attr.cudnn
    def test_cudnn(self): pass
    @attr.slow
    def test_slow(self): pass
    @attr.ideep
    def test_ideep(self): pass
    @attr.chainerx
    def test_chainerx(self): pass

@attr.slow
@testing.parameterize({"a": 1})
class TestBundle:
    def test_it(self): pass
"""


def test_marks(suite, monkeypatch):
    monkeypatch.setenv("CHAINER_TEST_GPU_LIMIT", "0")
    outcomes, marks = suite(MARKED)
    assert {name.split("::")[1]: marks[name] - {"skip"} for name in marks if "Marks" in name} == {
        "test_gpu": {"gpu"},
        "test_multi_gpu": {"gpu", "multi_gpu"},
        "test_cudnn": {"cudnn"},
        "test_slow": {"slow"},
        "test_ideep": {"ideep"},
        "test_chainerx": {"chainerx"},
    }
    ran = {name for name, outcome in outcomes.items() if outcome != "skipped"}
    assert ran == {
        "TestMarks::test_slow",
        "TestMarks::test_ideep",
        "TestBundle_param_0_{a=1}::test_it",
    }
    outcomes, _ = suite(MARKED, "-m", "not slow and not chainerx")
    assert (
        "TestMarks::test_slow" not in outcomes
        and "TestBundle_param_0_{a=1}::test_it" not in outcomes
    )


@pytest.mark.parametrize(
    "decorate, failing, runs, passes",
    [
        (condition.retry(3), {1, 2}, 3, True),
        (condition.retry(3), {1, 2, 3}, 3, False),
        (condition.repeat(3), set(), 3, True),
        (condition.repeat(3), {2}, 2, False),
        (condition.repeat_with_success_at_least(10, 3), {1}, 4, True),
        (condition.repeat_with_success_at_least(10, 8), {1, 2, 3}, 3, False),
    ],
)
def test_conditions(decorate, failing, runs, passes):
    log = []

    class Case(unittest.TestCase):
        def setUp(self):
            log.append("setUp")

        def tearDown(self):
            log.append("tearDown")

        @decorate
        def test_it(self):
            log.append("test")
            self.assertNotIn(log.count("test"), failing)

    result = unittest.TestResult()
    Case("test_it").run(result)
    assert log == ["setUp", "test", "tearDown"] * runs
    assert result.wasSuccessful() == passes and not result.errors
    if not passes:
        first = min(failing)
        assert f"{first} unexpectedly found in" in result.failures[0][1]
        assert f"({len(failing)} of {runs} runs failed;" in result.failures[0][1]


def test_conditions_that_cannot_be():
    with pytest.raises(ValueError, match="between 0 and times, but times=2, min_success=3"):
        condition.repeat_with_success_at_least(2, 3)
    with pytest.raises(unittest.SkipTest):
        condition.retry(2)(lambda self: unittest.TestCase().skipTest("no"))(None)


def _draw():
    return np.random.rand(), np.random.RandomState(testing.generate_seed()).rand()


def test_fix_random_of_a_function_and_of_classes(monkeypatch):
    fixed = testing.fix_random()(_draw)
    before = np.random.get_state()[1].copy()
    first = fixed()
    assert fixed() == first
    np.testing.assert_array_equal(np.random.get_state()[1], before)
    drawn = []

    @testing.fix_random()
    class Case(unittest.TestCase):
        def setUp(self):
            drawn.append(_draw())

        def test_it(self):
            pass

    Case("test_it").debug()
    assert drawn == [first]
    with pytest.raises(RuntimeError, match="generate_seed: call this function only within"):
        testing.generate_seed()
    with pytest.raises(TypeError, match="Plain has no method setUp; pass setup_method"):
        testing.fix_random()(type("Plain", (), {}))
    monkeypatch.setenv("CHAINER_TEST_RANDOM_NONDETERMINISTIC", "1")
    assert fixed() != first


def test_fix_random_is_left_when_set_up_fails():
    @testing.fix_random()
    class Case(unittest.TestCase):
        def setUp(self):
            raise ValueError

        def test_it(self):
            pass

    result = unittest.TestResult()
    Case("test_it").run(result)
    assert len(result.errors) == 1
    with pytest.raises(RuntimeError):
        testing.generate_seed()


@pytest.mark.parametrize(
    "decorate, runs",
    [
        (testing.with_requires("numpy>=1.20", "pytest"), True),
        (testing.with_requires("numpy>=1.20", "no-such-package"), False),
        (testing.with_requires("numpy>=999"), False),
        (testing.without_requires("numpy>=999"), True),
        (testing.without_requires("numpy", "no-such-package"), True),
        (testing.without_requires("numpy"), False),
    ],
)
def test_requirements(decorate, runs):
    test = decorate(lambda: 7)
    if runs:
        assert test() == 7
    else:
        with pytest.raises(unittest.SkipTest, match="requires"):
            test()


_WITHOUT_PYTEST = """
import sys, unittest
sys.modules["pytest"] = None
import numpy as np
from mpchain import functions as F, testing

@testing.unary_math_function_unittest(F.exp)
class TestExp(unittest.TestCase):
    pass

class TestMarked(unittest.TestCase):
    @testing.attr.slow
    def test_slow(self): pass

    @testing.attr.chainerx
    def test_chainerx(self): raise AssertionError

try:
    testing.run_module("__main__", __file__)
except RuntimeError as error:
    assert "pip install 'mpchain[test]'" in str(error), error
else:
    raise AssertionError("run_module needs pytest")
unittest.main()
"""


def test_without_pytest(tmp_path):
    program = tmp_path / "test_without_pytest.py"
    program.write_text(_WITHOUT_PYTEST)
    command = [sys.executable, str(program), "-v"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "test_slow (__main__.TestMarked.test_slow) ... ok" in result.stderr
    assert "skipped 'mpchain has no ChainerX'" in result.stderr
    assert re.search(r"test_forward_cpu .* ok", result.stderr)


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    with pytest.raises(RuntimeError, match=r"need packaging: pip install 'mpchain.test.'"):
        testing.with_requires("numpy")


def test_assert_warns():
    with testing.assert_warns(UserWarning):
        warnings.warn("x", UserWarning)
    with pytest.raises(AssertionError, match="FutureWarning not triggered"):
        with testing.assert_warns(FutureWarning):
            warnings.warn("x", UserWarning)


def test_patch_calls_through():
    with testing.patch("os.path.basename") as mock:
        assert os.path.basename("/a/b") == "b"
    mock.assert_called_once_with("/a/b")
    assert os.path.basename is not mock


@pytest.mark.parametrize("dtype", ["f", "d", "F"])
def test_generate_matrix(dtype):
    a = testing.generate_matrix((5, 2, 3), dtype, singular_values=[3, 0.5])
    assert a.shape == (5, 2, 3) and a.dtype == dtype
    np.testing.assert_allclose(np.linalg.svd(a)[1], [[3, 0.5]] * 5, rtol=1e-5)
    b = testing.generate_matrix((3, 3), singular_values=2)
    np.testing.assert_allclose(b @ b.T, 4 * np.eye(3), atol=1e-12)


def test_misuse_of_generate_matrix():
    with pytest.raises(ValueError, match=r"shape \(3,\) has too few axes"):
        testing.generate_matrix((3,), singular_values=1)
    with pytest.raises(TypeError, match="floating-point or complex, not int32"):
        testing.generate_matrix((3, 3), "i", singular_values=1)


@pytest.mark.long
def test_run_module(pytester):
    path = pytester.makepyfile("from mpchain import testing\ntesting.run_module('x', __file__)")
    assert pytester.runpython(path).ret == 0
    body = "from mpchain import testing\ndef test_it():\n    assert 0\n"
    path = pytester.makepyfile(test_main=body + "testing.run_module(__name__, __file__)")
    result = pytester.runpython(path)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*test_main.py::test_it FAILED*"])


def test_save_and_load():
    src, dst = mpchain.links.Linear(3, 2), mpchain.links.Linear(3, 2)
    testing.save_and_load_npz(src, dst)
    np.testing.assert_array_equal(src.W.array, dst.W.array)
    save, load = unittest.mock.Mock(), unittest.mock.Mock()
    testing.save_and_load(1, 2, "name", save, load)
    (path, saved), (path_again, loaded) = save.call_args.args, load.call_args.args
    assert path == path_again and os.path.basename(path) == "name" and (saved, loaded) == (1, 2)
    assert not os.path.exists(os.path.dirname(path))


def test_a_trainer_with_a_mock_updater():
    trainer = testing.get_trainer_with_mock_updater((12, "iteration"), iter_per_epoch=5)
    seen = []
    trainer.extend(
        lambda t: seen.append((t.updater.iteration, t.updater.epoch, t.updater.is_new_epoch)),
        name="look",
        trigger=(1, "iteration"),
    )
    while not trainer.stop_trigger(trainer):
        trainer.updater.update()
        seen.append(
            (trainer.updater.iteration, trainer.updater.epoch, trainer.updater.is_new_epoch)
        )
    assert len(seen) == 12 and seen[4] == (5, 1, True) and seen[5] == (6, 1, False)
    assert trainer.updater.epoch_detail == 12 / 5 and trainer.updater.update.call_count == 12


def _unary(func, **options):
    class Case(unittest.TestCase):
        pass

    Case.__module__ = __name__
    bundle = testing.unary_math_function_unittest(func, **options)(Case)
    for cls in bundle.classes:
        vars(sys.modules[__name__]).pop(cls.__name__)
    return bundle.classes


def test_unary_math_function_unittest():
    classes = _unary(F.exp, label_expected="exp")
    assert [cls.__name__ for cls in classes][:2] == [
        "Case_param_0_{dtype=float16, shape=(3, 2)}",
        "Case_param_1_{dtype=float16, shape=()}",
    ]
    tests = unittest.TestSuite(
        unittest.defaultTestLoader.loadTestsFromTestCase(cls) for cls in classes
    )
    assert tests.countTestCases() == 42
    result = unittest.TestResult()
    tests.run(result)
    assert result.wasSuccessful(), result.failures + result.errors
    assert cuda.available or len(result.skipped) == 18


@pytest.mark.parametrize(
    "func, options, name, message",
    [
        (F.exp, {"func_expected": np.sin}, "forward_cpu", "Not equal to tolerance"),
        (F.exp, {"label_expected": "sin"}, "label", "the label must be 'sin', but is 'exp'"),
        (
            lambda x: F.exp(x.array),
            {"func_expected": np.exp},
            "backward_cpu",
            "check_backward failed",
        ),
        (
            lambda x: x * x.array,
            {"func_expected": np.square, "double_backward_options": {"atol": 0}},
            "double_backward_cpu",
            "check_double_backward failed",
        ),
        (
            lambda x: F.cast(x, "d"),
            {"func_expected": np.positive},
            "forward_cpu",
            "the output must be float16, but is float64",
        ),
    ],
)
def test_unary_tests_find_what_is_wrong(func, options, name, message):
    cls = _unary(func, **options)[0]
    with pytest.raises(AssertionError, match=message):
        getattr(cls(f"test_{name}"), f"test_{name}")()


@pytest.mark.parametrize("form", ["argument", "keywords", "ufunc", "none"])
def test_references_of_unary_tests_get_the_dtype_if_they_take_it(form):
    seen = []

    def with_argument(x, dtype):
        seen.append(dtype)
        return np.sqrt(x, dtype=dtype)

    def with_keywords(x, **kwargs):
        return with_argument(x, **kwargs)

    forms = {"argument": with_argument, "keywords": with_keywords, "ufunc": np.sqrt}
    reference = forms.get(form, lambda x: np.sqrt(x))

    def positive(shape, dtype):
        return (np.full(shape, 4, dtype),) * 3

    class Test:
        pass

    decorate = testing.unary_math_function_unittest(F.sqrt, reference, make_data=positive)
    for cls in decorate(Test).classes:
        cls().test_forward_cpu()
    expected = [np.float16, np.float32, np.float64] * 2
    if form in ("argument", "keywords"):
        assert sorted(seen) == sorted(map(np.dtype, expected))
    else:
        assert not seen


def test_unary_tests_need_a_reference_and_may_have_data():
    with pytest.raises(ValueError, match="NumPy has no relu; give func_expected"):
        testing.unary_math_function_unittest(F.relu)
    data = lambda shape, dtype: tuple(np.full(shape, 2, dtype) for _ in range(3))
    cls = _unary(F.sqrt, make_data=data)[2]
    cls("test_double_backward_cpu").debug()


def test_a_trainer_with_a_mock_updater_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = testing.get_trainer_with_mock_updater((12, "iteration"), iter_per_epoch=5)
    trainer.run()
    assert trainer.updater.iteration == 12 and trainer.updater.epoch == 2
