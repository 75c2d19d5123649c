"""``mpchain-launch prove`` names planted faults, and proves programs without."""

import pytest

from tests.distributed import ranks
from tests.prove import programs
from tests.prove.faults import FAULTS, REFUSED, SOUND

pytestmark = pytest.mark.skipif(bool(ranks.why_not()), reason=ranks.why_not() or "-")

QUICK = {"mean over counts", "rank-dependent code", "updater"}


def _marked(names):
    return [
        pytest.param(name, marks=pytest.mark.slow if name in QUICK else pytest.mark.nightly)
        for name in names
    ]


@pytest.mark.parametrize("name", _marked(FAULTS))
def test_a_fault_is_named(name, tmp_path):
    fault, path = FAULTS[name], tmp_path / "train.py"
    text = programs.program(**fault.slots)
    path.write_text(text)
    code, output = programs.prove(path)
    assert code == 1 and "not the same" in output, output
    lines = [i for i, line in enumerate(text.splitlines(), 1) if line.endswith("# here")]
    assert not lines or any(f"line {i} of train.py" in output for i in lines), output
    for says in fault.says:
        assert says in output, output


@pytest.mark.parametrize("name", _marked(SOUND))
def test_a_sound_program_is_proved(name, tmp_path):
    path = tmp_path / "train.py"
    slots = dict(SOUND[name])
    path.write_text(programs.program(slots.pop("loop", programs.OWN_LOOP), **slots))
    code, output = programs.prove(path)
    assert code == 0 and output.startswith("proved: 3 steps, "), output


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
