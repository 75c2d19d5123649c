"""Tests that runs on several ranks are recorded, and computed again in one process."""

import re
import shutil

import pytest

from mpchain.replays.history import History
from tests.distributed import elastic
from tests.replays import programs


def _files(folder):
    return {path: path.stat().st_mtime_ns for path in (folder / "result").rglob("*")}


def test_steps_of_two_ranks_are_computed_in_one_process(run):
    programs.record(run)
    before = _files(run)
    printed = programs.launch(run, "replay", "record", "--step", 21)
    assert "steps 17 to 21 were computed again, in one process" in printed
    assert "fingerprints of 5 updates are equal bit for bit" in printed
    assert before == _files(run)


@pytest.mark.long
def test_a_record_has_a_short_line_for_each_step(run):
    programs.record(run)
    updates = History(run / "record").main.updates
    assert [*updates] == [*range(1, 25)]
    assert {update.n_ranks for update in updates.values()} == {2}
    assert {update.n_samples for update in updates.values()} == {12}
    values = {"main/loss", "main/accuracy"}
    assert all(update.values.keys() == values for update in updates.values())
    lines = (run / "record" / "record.jsonl").read_bytes().splitlines()
    assert all(len(line) <= 1000 for line in lines)


@pytest.mark.long
def test_reproducible_runs_must_be_equal_to_the_bit(run):
    programs.record(run, n=3, REPRODUCIBLE=True)
    printed = programs.launch(run, "replay", "record", "--step", 10)
    assert "steps 9 to 10 were computed again" in printed
    assert "fingerprints of 2 updates are equal bit for bit" in printed


@pytest.mark.long
def test_a_program_that_has_changed(run):
    """The program is refused; with --changed, the first step with another learning rate is
    found."""
    programs.record(run)
    path = run / "train.py"
    path.write_text(path.read_text("utf-8").replace("Adam()", "Adam(alpha=0.002)"), "utf-8")
    printed = programs.launch(run, "replay", "record", "--step", 3, code=2)
    assert "has changed since the record: restore it" in printed
    printed = programs.launch(run, "replay", "record", "--step", 3, "--changed", code=1)
    assert (
        "update 1 differs in /predictor/l1/W" in printed and "rounding does not explain" in printed
    )
    text = path.read_text("utf-8").replace("Linear(20, 30)", "Linear(20, 30, nobias=True)")
    path.write_text(text, "utf-8")
    printed = programs.launch(run, "replay", "record", "--step", 3, "--changed", code=2)
    assert "the program has other parameters" in printed


@pytest.mark.long
def test_steps_that_cannot_be_reached(run):
    """Without seeds, a run begins with other parameters; only the newest checkpoint remains."""
    programs.record(run, SEED=None, RETAINS=1)
    printed = programs.launch(run, "replay", "record", "--step", 26, code=2)
    assert "--step 26: the record has only the steps from 1 to 24" in printed
    printed = programs.launch(run, "replay", "record", "--step", 20, code=2)
    assert "there is no checkpoint before step 20 (the oldest checkpoint is of step 24)" in printed
    printed = programs.launch(run, "replay", "record", code=2)
    assert "all losses and parameters in the record in record are finite" in printed


FLIP = """
    @training.make_extension(trigger=(20, "iteration"))
    def flip(trainer):
        if comm.rank == 1 and updater.iteration == 20:
            model.predictor.l2.b.array.view(np.uint32)[1] ^= 1 << 31

    trainer.extend(flip)
"""


@pytest.mark.long
def test_a_bit_that_flips_on_a_rank_is_found(run):
    text = programs.MLP.replace("    trainer.run()", FLIP + "    trainer.run()")
    programs.record(run, text=text)
    printed = programs.launch(run, "replay", "record", "--verify", code=1)
    assert "steps 17 to 24 were computed again" in printed
    assert "update 21 differs in" in printed and "rounding does not explain" in printed


def test_a_whole_run_holds_its_fingerprints(run):
    programs.record(run, n=3)
    assert "of 8 updates are equal" in programs.launch(run, "replay", "record", "--verify")


@pytest.mark.long
def test_two_records_are_compared(run):
    programs.record(run)
    (run / "record").rename(run / "before")
    shutil.rmtree(run / "result")
    programs.record(run)
    assert "24 steps are equal bit for bit" in programs.launch(run, "diff", "before", "record")
    text = programs.MLP.replace("Adam()", "Adam(beta1=0.8)")
    shutil.rmtree(run / "result")
    programs.launch(run, "-n", 1, "--record=other", programs.write(run, text))
    printed = programs.launch(run, "diff", "before", "other", code=1)
    assert (
        "update 2 differs in /predictor/l1/W: the difference is" in printed
    )  # the first step has no momentum


@pytest.mark.long
def test_a_nan_of_four_ranks_two_of_which_are_lost(run):
    if reason := elastic.why_not():
        pytest.skip(reason)
    options = ["-n", 4, "--oversubscribe", "--elastic", "--record"]
    printed = programs.launch(run, *options, programs.write(run, programs.ELASTIC))
    assert "lost 2 of 4 ranks" in printed
    updates = History(run / "record").main.updates
    assert [update.n_ranks for update in updates.values()][:12:5] == [4, 3, 2]
    printed = programs.launch(run, "replay", "record")
    assert "steps 17 to 21 were computed again" in printed
    assert "fingerprints of 5 updates are equal" in printed
    assert "the samples of step 21: 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59\n" in printed
    assert "NaN appears first in sqrt, at train.py:23 in forward: h = h + F.sqrt(sign)" in printed
    assert "the number is in sample 57 (row 9 of the batch), which rank 1 of 2 computed" in printed
    typed = "p int(index[np.isnan(h.array).any(1)][0]), len(index)\nc\n"
    printed = programs.launch(run, "replay", "record", "--pdb", typed=typed)
    assert "train.py(24)forward()\n" in printed and "(57, 6)" in printed


@pytest.mark.long
def test_the_debugger_opens_in_the_loss_function_with_the_samples_of_a_rank(run):
    programs.record(run, n=3)
    typed = "p x.shape, float(x.sum())\nc\n"
    arguments = ["replay", "record", "--step", 18, "--pdb"]
    shown = [
        programs.launch(run, *arguments, *which, typed=typed)
        for which in ([], ["--rank", 0], ["--rank", 2])
    ]
    values = [re.search(r"\(\(4, 20\), [\d.]+\)", text)[0] for text in shown]
    assert values[0] == values[1] != values[2]
    assert all("-> return self.l2(F.dropout(F.relu(self.l1(x))))" in text for text in shown)
    samples = [re.search(r"the samples of rank \d: (.*)", text)[1] for text in shown[1:]]
    every = re.search(r"the samples of step 18: (.*)", shown[0])[1].split(", ")
    assert [text.split(", ") for text in samples] == [every[:4], every[8:]]
    printed = programs.launch(run, "replay", "record", "--step", 18, "--rank", 3, code=2)
    assert "--rank 3: only the ranks 0 to 2 computed step 18" in printed


@pytest.mark.long
def test_a_loop_with_two_optimizers_of_models_that_are_alike(run):
    programs.record(run, text=programs.LOOP)
    history = History(run / "record")
    assert [len(model.updates) for model in history.models.values()] == [24, 24]
    before = sorted((run / "saved").iterdir())
    printed = programs.launch(run, "replay", "record", "--step", 20)
    assert "steps 17 to 20 were computed again" in printed
    # The second optimizer has not made its update 20.
    assert "fingerprints of 7 updates are equal" in printed
    assert before == sorted((run / "saved").iterdir())


@pytest.mark.long
def test_data_that_were_scattered(run):
    """A replay in one process, which gets a rank's batches instead of the joined batches of all
    ranks, says so."""
    batches = """
    data = mpchain.distributed.scatter_dataset(data, comm)
    batches = iterators.SerialIterator(data, 12)
"""
    line = "    batches = create_sharded_iterator(iterators.SerialIterator(data, 12), comm)\n"
    programs.record(run, text=programs.MLP.replace(line, batches))
    printed = programs.launch(run, "replay", "record", "--step", 3, code=2)
    assert "of update 1 has 12 samples in one process, but had 24 on 2 ranks: divide" in printed
    assert "Traceback" not in printed


NORM = "self.norm = mpchain.distributed.links.MultiNodeBatchNormalization(30, comm)"
SNAPSHOT = "extensions.snapshot(autoload=True), trigger=(8, 'iteration')"
VARIANTS = {
    "joint": [
        ("self.l2 =", f"{NORM}\n                self.l2 ="),
        ("self.l1(x)", "self.norm(self.l1(x))"),
    ],
    "captured": [("optimizer, comm)", "optimizer, comm, graph=True)"), ("F.dropout", "")],
    "accumulated": [("optimizer, comm)", "optimizer, comm, accumulation=2)")],
    "snapshot": [("checkpoint(comm, n_retains=RETAINS)", f"training.{SNAPSHOT}")],
    "counted": [("np.int32(i % 3)", "np.int32(i % 4 - 1)")],
    "lazy": [("Linear(20, 30)", "Linear(None, 30)")],
    "buffered": [("Adam(), comm)", "Adam(), comm, double_buffering=True)")],
}


@pytest.mark.long
@pytest.mark.parametrize("name", VARIANTS)
def test_variants(run, name):
    text = programs.MLP
    for old, new in VARIANTS[name]:
        assert old in text
        text = text.replace(old, new)
    programs.record(run, text=text)
    printed = programs.launch(run, "replay", "record", "--step", 20)
    assert re.search(r"steps 1[67] to 20 were computed again, in one process", printed)
    assert re.search(r"fingerprints of [45] updates are equal", printed)


@pytest.mark.long
def test_a_step_that_raised_an_exception_on_a_rank(run):
    """The record has no line for this step."""
    text = programs.MLP.replace(
        "        def forward(self, x):\n",
        "        def forward(self, x):\n"
        "            if optimizer.t == 19 and (x == data[16][0]).all(axis=1).any():\n"
        "                raise IndexError(f'no such word among {len(x)}')\n",
    ).replace("(data, 12)", "(data, 12, shuffle=False)")  # step 20 has the samples 36 to 47
    text = text.replace("data[16]", "data[44]")
    programs.record(run, text=text, code=1)
    printed = programs.launch(run, "replay", "record", "--step", 20, code=1)
    # The exception may have come before the checkpoint of step 16 was complete.
    assert re.search("fingerprints of (3|11) updates are equal bit for bit", printed)
    assert "IndexError: no such word among 6" in printed
    typed = "p optimizer.t, len(x)\nq\n"
    printed = programs.launch(run, "replay", "record", "--step", 20, "--pdb", typed=typed, code=1)
    assert "(19, 6)" in printed
    printed = programs.launch(run, "replay", "record", "--step", 21, code=2)
    assert "--step 21: the record has only the steps from 1 to 19" in printed
