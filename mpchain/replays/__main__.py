"""The commands ``replay`` and ``diff`` of ``mpchain-launch``."""

import argparse
import os
import sys

from mpchain.replays import program, rounding
from mpchain.replays.diff import diff
from mpchain.replays.history import History
from mpchain.replays.records import RecordError
from mpchain.replays.replay import Replay
from mpchain.replays.report import compare, report


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns 0 on success, 1 if results differ, or 2 if an argument is wrong or a
    record cannot be used.

    >>> main(["replay", "missing", "--step", "3"])
    2
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parser().parse_args(arguments)
    try:
        if options.command == "diff":
            return diff(History(options.folder), History(options.other))
        return _replay(options, arguments)
    except RecordError as error:
        print(f"mpchain-launch: {error}", file=sys.stderr)
        return 2


def _parser():
    parser = argparse.ArgumentParser(prog="mpchain-launch", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    replay = commands.add_parser("replay", help="compute steps of a record again, in one process")
    replay.add_argument("folder", metavar="RUN", help="the folder of the record")
    last = replay.add_mutually_exclusive_group()
    step = "the step to stop in (default: the first with a loss or parameter that is not finite)"
    last.add_argument("--step", type=int, metavar="K", help=step)
    verify = "compute again the steps after the newest checkpoint that precedes the last step"
    last.add_argument("--verify", action="store_true", help=verify)
    rank = "examine only the samples of this rank"
    replay.add_argument("--rank", type=int, metavar="R", help=rank)
    debug = "open a debugger in the loss function, or where a function returns a non-finite number"
    replay.add_argument("--pdb", action="store_true", help=debug)
    changed = "run the program even if it has changed since the record"
    replay.add_argument("--changed", action="store_true", help=changed)
    replay.add_argument("--measure", metavar="FILE", help=argparse.SUPPRESS)
    both = commands.add_parser("diff", help="find the first step in which two records differ")
    both.add_argument("folder", metavar="RUN1", help="the folder of a record")
    both.add_argument("other", metavar="RUN2", help="the folder of another record")
    return parser


def _replay(options, arguments):
    history = History(options.folder)
    if not options.changed:
        program.check(history.about)
    _take_environment(history.about, arguments)
    updates = history.main.updates
    step, last = options.step, max(updates)
    if options.verify:
        step = last
    elif step is None:
        step = history.first_not_finite()
    if not 1 <= step <= last + 1:  # a run that failed did not record its last step
        raise RecordError(f"--step {step}: the record has only the steps from 1 to {last}")
    if options.measure:
        rounding.write(history, step, options.measure)
        return 0
    n_ranks = history.main.at(step).n_ranks
    if options.rank is not None and not 0 <= options.rank < n_ranks:
        raise RecordError(
            f"--rank {options.rank}: only the ranks 0 to {n_ranks - 1} computed step {step}"
        )
    replay = Replay(history, step, rank=options.rank, stops=options.pdb)
    folder = os.getcwd()
    try:
        replay.run()
    except Exception as error:
        if not isinstance(error, RecordError):
            compare(replay, arguments)
        raise
    finally:
        os.chdir(folder)
    return report(replay, arguments, options.rank)


def _take_environment(about, arguments):
    """Restarts this process if its numbers of threads differ from those of the run."""
    threads = about["threads"]
    if {name: os.environ.get(name) for name in threads} != threads:
        os.environ.update(threads)
        os.execv(sys.executable, [sys.executable, "-m", "mpchain.replays", *arguments])


if __name__ == "__main__":
    sys.exit(main())
