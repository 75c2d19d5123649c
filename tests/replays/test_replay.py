"""Runs of several ranks are recorded, and computed again in one process."""

from mpchain.replays.history import History
from tests.replays import programs


def test_steps_of_two_ranks_are_computed_in_one_process(run):
    programs.record(run)
    before = {path: path.stat().st_mtime_ns for path in (run / "result").rglob("*")}
    printed = programs.launch(run, "replay", "record", "--step", 21)
    assert "step 21 is reached from step 16, in one process" in printed
    assert "fingerprints of 5 updates are equal to the bit" in printed
    assert before == {path: path.stat().st_mtime_ns for path in (run / "result").rglob("*")}


def test_a_record_has_a_short_line_for_each_step(run):
    programs.record(run)
    model = History(run / "record").main
    assert [*model.updates] == [*range(1, 25)]
    assert {update.n_ranks for update in model.updates.values()} == {2}
    assert {update.n_samples for update in model.updates.values()} == {12}
    assert all(
        update.values.keys() == {"main/loss", "main/accuracy"} for update in model.updates.values()
    )
    lines = (run / "record" / "record.jsonl").read_bytes().splitlines()
    assert all(len(line) <= 1000 for line in lines)


def test_a_changed_learning_rate_is_found(run):
    programs.record(run)
    path = run / "train.py"
    path.write_text(path.read_text("utf-8").replace("Adam()", "Adam(alpha=0.002)"), "utf-8")
    printed = programs.launch(run, "replay", "record", "--step", 3, code=2)
    assert "is another program than the one that was recorded" in printed
    printed = programs.launch(run, "replay", "record", "--step", 3, "--changed", code=1)
    assert "update 1 differs from the record in /predictor/l1/W" in printed
