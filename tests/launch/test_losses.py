import json

import pytest

from launch.loop import Loop
from launch.losses import TIME_TO_HEAR, Elastic, Losses
from launch.plan import Plan


class Rank:
    def __init__(self, number):
        self.number, self.name = number, f"rank {number} of 4 on a"
        self.ended, self.was_killed, self.exception = False, False, ""

    def kill(self):
        self.was_killed = True

    def swap_places(self, other):
        self.swapped_with = other


class Job:
    """The parts of a job of four ranks that its losses need."""

    starter_runs = True

    def __init__(self, **limits):
        self.plan = Plan(n=4, program=[], starter=None, elastic=Elastic(**limits))
        self.loop, self.verdict, self.told = Loop(), None, []
        self.ranks = {number: Rank(number) for number in range(4)}

    def tell(self, sentence):
        self.told.append(sentence)

    def end(self, sentence, code, asks_where):
        self.verdict = sentence, code


@pytest.fixture
def make():
    """Returns a function that makes a job and its losses."""
    jobs = []

    def make(**limits):
        jobs.append(Job(**limits))
        return jobs[-1], Losses(jobs[-1])

    yield make
    for job in jobs:
        job.loop.close()


def note(losses, rank, **words):
    losses.note(rank, json.dumps(words).encode() + b"\n")


def lines_of(losses):
    head, *lines = losses.describe()
    return [head, *(line[len("  00:00:00 ") :] for line in lines)]


def test_ranks_are_lost_until_too_few_are_left(make):
    job, losses = make(min_ranks=3)
    losses.take(job.ranks[2], "was killed", 137)
    assert (job.told, job.verdict) == (["rank 2 of 4 on a was killed; 3 of 4 ranks continue"], None)
    losses.take(job.ranks[0], "was killed", 139)
    sentence = "rank 0 of 4 on a was killed; 2 ranks are left, and --min-ranks is 3"
    assert job.verdict == (sentence, 139)
    assert len(losses) == 2
    losses.take(job.ranks[1], "was killed by mpchain-launch", 137)  # the job has ended
    assert len(losses) == 2
    assert lines_of(losses)[0] == "lost 2 of 4 ranks:"


def test_most_losses_in_an_hour(make):
    job, losses = make(most_losses=1)
    losses.take(job.ranks[0], "was killed", 137)
    job.loop._held_up -= 3601  # one hour has passed; the difference of times is rounded
    losses.take(job.ranks[1], "was killed", 137)
    assert not job.verdict
    losses.take(job.ranks[2], "was killed", 137)
    assert job.verdict[0].endswith("; --max-losses-per-hour is 1, and this was loss 2")


def test_nothing_is_borne_without_limits_after_the_end_and_without_mpirun(make):
    job, losses = make()
    assert losses.are_tolerated
    job.starter_runs = False
    assert not losses.are_tolerated
    job.starter_runs, job.verdict = True, ("ended", 1)
    assert not losses.are_tolerated
    job.plan = job.plan.replace(elastic=None)
    job.verdict = None
    assert not Losses(job).are_tolerated


def test_notes_come_before_or_after_the_loss_and_in_pieces(make):
    job, losses = make()
    losses.note(job.ranks[0], b'{"event": "killed", "ra')
    losses.note(job.ranks[0], b'nk": 1, "cause": "it was stopped"}\n')
    losses.take(job.ranks[1], "was killed", 137)
    losses.take(job.ranks[3], "was lost", 137)
    note(losses, job.ranks[0], event="recovered", ranks=[1, 3], iterations=3, seconds=0.26)
    assert lines_of(losses) == [
        "lost 2 of 4 ranks:",
        "rank 1 of 4 on a was killed; another rank ended this rank: it was stopped; "
        "3 iterations repeated, 0.3 s",
        "rank 3 of 4 on a was lost; 3 iterations repeated, 0.3 s",
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"no JSON",
        b"[]",
        b"3",
        b'{"event": "other"}',
        b'{"event": "killed", "rank": "x", "cause": ""}',
        b'{"event": "recovered", "ranks": 3, "iterations": 1, "seconds": 1}',
        b'{"event": "recovered", "ranks": [0], "iterations": 1, "seconds": "x"}',
        b"\xff",
    ],
)
def test_notes_that_are_not_understood_are_ignored(make, line):
    job, losses = make()
    losses.note(job.ranks[0], line + b"\n")
    losses.take(job.ranks[0], "was killed", 137)
    assert lines_of(losses)[1] == "rank 0 of 4 on a was killed"


def test_rank_that_only_others_lost_is_ended(make):
    job, losses = make()
    for number in (1, 2):
        note(losses, job.ranks[0], event="lost", ranks=[number], causes={str(number): "silent"})
    losses.take(job.ranks[2], "was killed", 137)  # the launcher also learned about the loss
    job.loop._held_up -= TIME_TO_HEAR
    job.loop.run(until=lambda: job.ranks[1].was_killed)
    assert not job.ranks[2].was_killed
    losses.take(job.ranks[1], "was killed", 137)
    assert lines_of(losses)[2].endswith("; the other ranks had lost this rank: silent")


def test_reason_of_a_restart(make):
    job, losses = make()
    note(losses, job.ranks[2], event="restart", cause="its state is lost")
    assert job.ranks[2].exception == "its state is lost"


def test_rank_that_takes_the_place_of_another(make):
    job, losses = make()
    losses.take(job.ranks[1], "was killed", 137)
    losses.note(job.ranks[3], b'{"event": "replaced", "rank": 1}\n')
    note(losses, job.ranks[0], event="recovered", ranks=[1], iterations=1, seconds=0.5)
    assert job.ranks[3].swapped_with is job.ranks[1]
    line = "rank 1 of 4 on a was killed; rank 3 took its place; 1 iterations repeated, 0.5 s"
    assert lines_of(losses)[1] == line
