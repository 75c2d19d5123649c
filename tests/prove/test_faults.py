"""Tests that ``mpchain-launch prove`` names planted faults, and proves programs without faults."""

import pytest

from tests.distributed import ranks
from tests.prove import programs
from tests.prove.faults import EVALUATOR, FAULTS, REFUSED, SOUND

pytestmark = pytest.mark.skipif(bool(ranks.why_not()), reason=ranks.why_not() or "-")

QUICK = {"mean over counts", "rank-dependent code", "updater"}


def _marked(names):
    return [
        pytest.param(name, marks=pytest.mark.slow if name in QUICK else pytest.mark.nightly)
        for name in names
    ]


@pytest.mark.parametrize("name", _marked(FAULTS))
def test_a_fault_is_named(name, tmp_path, n=2):
    fault, path = FAULTS[name], tmp_path / "train.py"
    text = programs.program(**fault.slots)
    path.write_text(text)
    code, output = programs.prove(path, n)
    assert code == 1 and "not the same" in output, output
    lines = [i for i, line in enumerate(text.splitlines(), 1) if line.endswith("# here")]
    assert not lines or any(f"line {i} of train.py" in output for i in lines), output
    for says in fault.says:
        assert says in output, output


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["all ranks compute the same batch", "dropped samples"])
def test_samples_are_named_where_a_rank_has_as_many_as_an_axis_is_long(name, tmp_path):
    test_a_fault_is_named(name, tmp_path, n=3)


@pytest.mark.parametrize("name", _marked(SOUND))
def test_a_sound_program_is_proved(name, tmp_path):
    path = tmp_path / "train.py"
    slots = dict(SOUND[name])
    path.write_text(programs.program(slots.pop("loop", programs.OWN_LOOP), **slots))
    code, output = programs.prove(path)
    assert code == 0 and output.startswith("proved: 3 steps, "), output


SMALL = {"losses": "l = l * (1 + 1e-5 * comm.rank)  # here"}


@pytest.mark.nightly
@pytest.mark.parametrize("slots", [SMALL, {}])
def test_double_precision_finds_what_rounding_hides(slots, tmp_path):
    path = tmp_path / "train.py"
    text = programs.program(**slots)
    path.write_text(text)
    assert programs.prove(path)[0] == 0
    code, output = programs.prove("train", 2, "--float64", "-m", folder=tmp_path)
    if slots:
        line = 1 + [line.endswith("# here") for line in text.splitlines()].index(True)
        assert code == 1 and f"line {line} of train.py" in output, output
    else:
        greatest = float(output.split("greatest difference ")[1])
        assert code == 0 and 0 < greatest < 1e-13, output


@pytest.mark.nightly
def test_a_difference_that_rounding_may_make_is_told(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(programs.program(losses="l = l * (1 + 5e-5 * comm.rank)"))
    code, output = programs.prove(path)
    assert code == 0 and "--float64 tells" in output, output


@pytest.mark.nightly
def test_an_evaluator_that_is_not_reached_is_told_once(tmp_path):
    path = tmp_path / "train.py"
    after = EVALUATOR.format(report="{'validation': loss(x, t, m)}", trigger=4)
    path.write_text(programs.program(programs.UPDATER, after=after))
    code, output = programs.prove(path)
    told = "not compared: evaluator validation, which is not reached in 3 steps"
    assert code == 0 and output.count(told) == 1 and "--steps" in output, output
    code, output = programs.prove(path, 2, "--steps", "4")
    assert code == 0 and output.startswith("proved: 4 steps") and told[:12] not in output, output


@pytest.mark.parametrize("name", _marked(REFUSED))
def test_what_cannot_be_proved_is_refused(name, tmp_path):
    slots, says = REFUSED[name]
    path = tmp_path / "train.py"
    text = programs.program(**slots)
    path.write_text(text)
    code, output = programs.prove(path)
    assert code == 1 and output.startswith("refused: ") and says in output, output
    lines = [i for i, line in enumerate(text.splitlines(), 1) if line.endswith("# here")]
    assert not lines or any(f"line {i} of train.py" in output for i in lines), output
