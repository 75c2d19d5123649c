"""Runs the files of this folder whose tests use ``comm`` again on several ranks."""

import contextlib
import pathlib
import re

import pytest

from tests.distributed.pytest_on_ranks import Ranks

FOLDER = pathlib.Path(__file__).parent
FILES = sorted(
    path.relative_to(FOLDER).as_posix()
    for path in FOLDER.rglob("test_*.py")
    if re.search(r"^def \w+\([^)]*\bcomm\b", path.read_text("utf-8"), re.MULTILINE)
)


@pytest.fixture(scope="module")
def ranks_of():
    """Returns a function that returns a given number of ranks; they live until another number is
    requested. Further arguments are passed to :class:`Ranks`."""
    with contextlib.ExitStack() as stack:
        last = None

        def ranks_of(n, **options):
            nonlocal last
            if last is None or last.n != n:
                stack.close()
                last = stack.enter_context(Ranks(n, **options))
            return last

        yield ranks_of


# Plain pytest has run everything on one rank. On two ranks, it runs these files, which test what
# others build on: messages, their derivatives, and training.
QUICK = {
    "communicators/test_mpi.py",
    "functions/test_communication.py",
    "test_updaters.py",
}


def _cases():
    for n_ranks in (2, 3):
        for file in FILES:
            is_quick = n_ranks == 2 and file in QUICK
            yield pytest.param(n_ranks, file, marks=() if is_quick else pytest.mark.long)


def test_quick_files_exist():
    assert set(FILES) >= QUICK


@pytest.mark.parametrize(("n_ranks", "file"), [*_cases()])
def test_file_on_ranks(n_ranks, file, needs_mpirun, ranks_of):
    failure = ranks_of(n_ranks).run(str(FOLDER / file))
    assert not failure, failure


@pytest.mark.parametrize(
    "mark",
    [
        pytest.param("long", marks=pytest.mark.long),
        pytest.param("nightly", marks=[pytest.mark.nightly, pytest.mark.timeout(3600)]),
    ],
)
def test_captured_tables_on_two_ranks(mark, needs_mpirun):
    with Ranks(2, limit=3500) as both:
        failure = both.run(str(FOLDER / "optimizers/test_captured_tables.py"), "-m", mark)
    assert not failure, failure
