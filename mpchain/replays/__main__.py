"""The commands ``replay`` and ``diff`` of ``mpchain-launch``."""

import argparse
import os
import sys

from mpchain.replays import program
from mpchain.replays.history import History
from mpchain.replays.records import RecordError
from mpchain.replays.replay import Replay


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns 0, 1 if something differs, or 2 for wrong use.

    >>> main(["replay", "missing", "--step", "3"])
    2
    """
    options = _parser().parse_args(arguments)
    try:
        return _replay(options)
    except RecordError as error:
        print(f"mpchain-launch: {error}", file=sys.stderr)
        return 2


def _parser():
    parser = argparse.ArgumentParser(prog="mpchain-launch", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    replay = commands.add_parser("replay", help="compute steps of a record again in one process")
    replay.add_argument("folder", metavar="RUN", help="the folder of the record")
    replay.add_argument("--step", type=int, metavar="K", help="the step to stop in")
    replay.add_argument("--changed", action="store_true", help="the program may have changed")
    return parser


def _replay(options):
    history = History(options.folder)
    if not options.changed:
        program.check(history.about)
    _take_environment(history.about)
    step, last = options.step, max(history.main.updates)
    if not 1 <= step <= last:
        raise RecordError(f"step {step} is not in the record, which has steps from 1 to {last}")
    replay = Replay(history, step)
    replay.run()
    return report(replay)


def report(replay: Replay) -> int:
    """Prints what the replay has found; returns the exit code."""
    begun = replay.begun_at
    n = replay.n_equal + replay.n_rounded
    print(f"mpchain: step {replay.step} is reached from step {begun}, in one process")
    if replay.first_difference is None:
        words = "to the bit" if not replay.n_rounded else "up to rounding"
        print(f"mpchain: fingerprints of {n} updates are equal {words}")
        return 0
    found = replay.first_difference
    print(f"mpchain: update {found.t} differs from the record in {found.place}: {found.text}")
    return 1


def _take_environment(about):
    """Starts this process anew if numbers of threads are others than those of the run."""
    threads = about["threads"]
    if {name: os.environ.get(name) for name in threads} != threads:
        os.environ.update(threads)
        command = [sys.executable, "-m", "mpchain.replays", *sys.argv[1:]]
        os.execv(sys.executable, command)


if __name__ == "__main__":
    sys.exit(main())
