"""Tests the configuration: thread-local over global entries, the environment, and the dtype
policy."""

import io
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import mpchain
from mpchain import config, global_config
from mpchain.configuration import GlobalConfig, LocalConfig

pytestmark = pytest.mark.slow

DEFAULTS = {
    "autotune": False,
    "compute_mode": None,
    "cudnn_deterministic": False,
    "cudnn_fast_batch_normalization": False,
    "debug": False,
    "dtype": np.dtype(np.float32),
    "enable_backprop": True,
    "in_recomputing": False,
    "keep_graph_on_report": False,
    "lazy_grad_sum": False,
    "schedule_func": None,
    "train": True,
    "type_check": True,
    "use_cudnn": "auto",
    "use_cudnn_tensor_core": "auto",
    "use_ideep": "never",
    "use_static_graph": True,
    "warn_nondeterministic": False,
}


def in_new_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def run_python(code, **environment):
    """Runs code in a fresh process; returns its standard output, or the last line of its error."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=_environment() | environment, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def _environment():
    kept = {k: v for k, v in os.environ.items() if not k.startswith("CHAINER_")}
    return kept | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(name):
    assert getattr(config, name) == getattr(global_config, name) == DEFAULTS[name]


def test_using_config_restores_what_was_there():
    assert "train" not in vars(config)
    with mpchain.using_config("train", False):
        assert config.train is False and global_config.train is True
        with mpchain.using_config("train", True):
            assert config.train is True
        assert config.train is False
    assert config.train is True and "train" not in vars(config)


def test_using_config_restores_after_an_error():
    with pytest.raises(ZeroDivisionError), mpchain.using_config("debug", True):
        raise ZeroDivisionError
    assert config.debug is False


def test_using_config_may_be_used_again_but_not_within_itself():
    quiet = mpchain.using_config("train", False)
    for _ in range(2):
        with quiet:
            assert not config.train
            with pytest.raises(RuntimeError, match="for 'train' has not ended: call using_config"):
                quiet.__enter__()
        assert config.train


def test_using_config_of_another_configuration():
    own = LocalConfig(GlobalConfig(train=1))
    with mpchain.using_config("train", 2, own):
        assert own.train == 2 and config.train is True
    assert own.train == 1


def test_a_local_entry_is_seen_by_its_thread_alone():
    with mpchain.using_config("train", False):
        assert in_new_thread(lambda: config.train) is True
    own = GlobalConfig(a=1)
    local = LocalConfig(own)
    local.a = 2
    assert in_new_thread(lambda: local.a) == 1
    del local.a
    assert local.a == 1


def test_a_global_entry_is_seen_by_all_threads_that_have_none_of_their_own():
    own = GlobalConfig(a=1)
    local = LocalConfig(own)
    own.a = 2
    assert local.a == 2 and in_new_thread(lambda: local.a) == 2
    local.a = 3
    own.a = 4
    assert local.a == 3 and in_new_thread(lambda: local.a) == 4
    own.user_added = "new"
    assert local.user_added == "new"
    del own.user_added
    with pytest.raises(AttributeError):
        local.user_added
    with pytest.raises(AttributeError):
        own.user_added


def test_configurations_do_not_mix():
    one, two = GlobalConfig(a=1), GlobalConfig(a=2)
    assert (LocalConfig(one).a, LocalConfig(two).a) == (1, 2)


def test_functions_can_be_entries():
    own = GlobalConfig(callback=lambda value: value + 1)
    local = LocalConfig(own)
    assert local.callback(1) == 2
    own.callback = lambda value: value + 2
    assert local.callback(1) == 3
    local.callback = len
    assert local.callback("abc") == 3


def test_an_unknown_entry():
    with pytest.raises(AttributeError, match="'LocalConfig' object has no attribute 'trian'"):
        config.trian


def test_entries_of_users():
    with mpchain.using_config("user_alpha", 3):
        assert config.user_alpha == 3
    with pytest.raises(AttributeError, match="no attribute 'user_alpha'"):
        config.user_alpha


@pytest.mark.parametrize(
    "name, hint", [("trian", r"do you mean 'train'\? Names"), ("depth", r"'depth': Names of a")]
)
@pytest.mark.parametrize("where", [config, global_config])
def test_names_that_are_no_entries_are_refused(where, name, hint):
    with pytest.raises(AttributeError, match=hint):
        setattr(where, name, False)
    with pytest.raises(AttributeError, match=hint):
        with mpchain.using_config(name, False, where):
            pass
    assert not hasattr(where, name)


def test_programs_for_chainer_may_set_any_entry():
    code = """if True:
        import mpchain.compat
        mpchain.compat.install()
        import chainer
        chainer.config.depth = 3
        chainer.global_config.width = 4
        with chainer.using_config("height", 5):
            print(chainer.config.depth, chainer.config.width, chainer.config.height)
        mpchain.compat.uninstall()
        chainer.config.length = 6
    """
    assert "config has no entry 'length'" in run_python(code)
    assert run_python(code.replace("chainer.config.length = 6", "")) == "3 4 5"


@pytest.mark.parametrize("to_stdout", [False, True])
def test_show(to_stdout, capsys):
    local = LocalConfig(GlobalConfig(beta="b", alpha=1))
    local.user_longer = None
    file = None if to_stdout else io.StringIO()
    local.show(file)
    text = capsys.readouterr().out if to_stdout else file.getvalue()
    assert text == "alpha       1\nbeta        b\nuser_longer None\n"


def test_show_of_the_global_configuration(capsys):
    global_config.show()
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == sorted(names) and set(DEFAULTS) <= set(names)


def test_debug_mode():
    assert mpchain.is_debug() is False
    try:
        mpchain.set_debug(True)
        assert mpchain.is_debug() is True and in_new_thread(mpchain.is_debug) is False
    finally:
        del config.debug


def test_backprop_modes():
    with mpchain.no_backprop_mode():
        assert config.enable_backprop is False
        with mpchain.force_backprop_mode():
            assert config.enable_backprop is True
        assert config.enable_backprop is False
    assert config.enable_backprop is True


def test_compute_mode():
    assert mpchain.get_compute_mode() is None
    with mpchain.using_config("compute_mode", "cudnn"):
        assert mpchain.get_compute_mode() == "cudnn"


# The dtype policy.


@pytest.mark.parametrize(
    "configured, asked, mapped, expected",
    [
        (np.float32, None, None, np.dtype("f4")),
        (np.float64, None, None, np.dtype("f8")),
        (np.float64, np.float16, None, np.dtype("f2")),
        (np.float32, "int32", None, np.dtype("i4")),
        (mpchain.mixed16, None, None, np.dtype("f2")),
        (mpchain.mixed16, None, np.float32, np.dtype("f4")),
        (np.float32, mpchain.mixed16, "f2", np.dtype("f2")),
        (np.float32, mpchain.mixed16, None, np.dtype("f2")),
        (mpchain.mixed_bf16, None, None, mpchain.mixed_bf16.dtype),
        (mpchain.mixed_bf16, None, np.float32, np.dtype("f4")),
        (np.float32, "bfloat16", None, mpchain.mixed_bf16.dtype),
    ],
)
def test_get_dtype(configured, asked, mapped, expected):
    with mpchain.using_config("dtype", configured):
        assert mpchain.get_dtype(asked, mapped) == expected


def test_data_of_mixed_precision_are_float16():
    with mpchain.using_config("dtype", mpchain.mixed16):
        assert np.zeros(2).astype(mpchain.config.dtype).dtype == np.float16
        assert np.zeros(2, mpchain.get_dtype()).dtype == np.float16


def test_wrong_dtypes():
    with pytest.raises(TypeError):
        mpchain.get_dtype("no dtype")
    with pytest.raises(ValueError, match=r"^get_dtype: .* floating-point .* not int32"):
        mpchain.get_dtype(mpchain.mixed16, np.int32)


@pytest.mark.parametrize("name", ["mixed16", "mixed_bf16"])
def test_policies_are_single_objects(name):
    policy = getattr(mpchain, name)
    assert repr(policy) == name
    assert pickle.loads(pickle.dumps(policy)) is policy


# The environment, read once at import.


# For each case: the text of the environment variables, and the expected entries.
ENVIRONMENTS = [
    {
        "debug": ("1", "True"),
        "type_check": ("0", "False"),
        "keep_graph_on_report": ("1", "True"),
        "lazy_grad_sum": ("1", "True"),
        "cudnn_fast_batch_normalization": ("1", "True"),
        "use_cudnn": ("never", "never"),
        "use_ideep": ("auto", "auto"),
        "dtype": ("float64", "float64"),
    },
    {"debug": ("", "False"), "dtype": ("mixed16", "mixed16")},
]


@pytest.mark.slow
@pytest.mark.parametrize("entries", ENVIRONMENTS)
def test_environment(entries):
    variables = {f"CHAINER_{entry.upper()}": text for entry, (text, _) in entries.items()}
    values = ", ".join(f"mpchain.config.{entry}" for entry in entries)
    expected = " ".join(value for _, value in entries.values())
    assert run_python(f"import mpchain; print({values})", **variables) == expected


@pytest.mark.parametrize(
    "variable, text, message",
    [
        ("CHAINER_DEBUG", "yes", "environment variable CHAINER_DEBUG must be 0 or 1, not 'yes'"),
        (
            "CHAINER_DTYPE",
            "int8",
            "environment variable CHAINER_DTYPE must be one of mixed16, mixed_bf16, bfloat16, "
            "float16, float32, float64, not 'int8'",
        ),
        (
            "CHAINER_USE_CUDNN",
            "1",
            "environment variable CHAINER_USE_CUDNN must be one of always, auto, never, not '1'",
        ),
    ],
)
def test_wrong_environment(variable, text, message):
    assert run_python("import mpchain", **{variable: text}) == f"ValueError: {message}"
