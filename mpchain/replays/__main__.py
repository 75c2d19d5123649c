"""The commands ``replay`` and ``diff`` of ``mpchain-launch``."""

import argparse
import os
import sys

from mpchain.replays import comparison, program, rounding
from mpchain.replays.diff import diff
from mpchain.replays.history import History
from mpchain.replays.records import RecordError
from mpchain.replays.replay import Replay


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns 0, 1 if something differs, or 2 for wrong use.

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
    replay = commands.add_parser("replay", help="compute steps of a record again in one process")
    replay.add_argument("folder", metavar="RUN", help="the folder of the record")
    last = replay.add_mutually_exclusive_group()
    step = "the step to stop in (default: the first whose loss is not finite)"
    last.add_argument("--step", type=int, metavar="K", help=step)
    verify = "compute the steps after the last checkpoint but one again, to the end of the run"
    last.add_argument("--verify", action="store_true", help=verify)
    changed = "run the program even if it is not the one that was recorded"
    replay.add_argument("--changed", action="store_true", help=changed)
    replay.add_argument("--measure", metavar="FILE", help=argparse.SUPPRESS)
    both = commands.add_parser("diff", help="find the first step in which two records differ")
    both.add_argument("folder", metavar="RUN1", help="the folder of a record")
    both.add_argument("other", metavar="RUN2", help="the folder of another one")
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
    if not 1 <= step <= last:
        raise RecordError(f"step {step} is not in the record, which has steps from 1 to {last}")
    if options.measure:
        rounding.write(history, step, options.measure)
        return 0
    replay = Replay(history, step)
    folder = os.getcwd()
    replay.run()
    os.chdir(folder)
    return report(replay, [*arguments, "--changed"])


def report(replay: Replay, arguments: list[str]) -> int:
    """Prints what a replay has found; returns the exit code.

    Args:
        replay: the replay.
        arguments: the command.
    """
    begun, n = replay.begun_at, len(replay.updates)
    print(f"mpchain: step {replay.step} is reached from step {begun}, in one process")
    found = replay.differences()
    if not found:
        print(f"mpchain: fingerprints of {n} updates are equal to the bit")
        return 0
    first = next(iter(found.values()))[0]
    if replay.is_exact:
        print(f"mpchain: {first}; the run was reproducible, so that bits must be equal")
        return 1
    steps = {i: replay.updates[i][1].t - (begun or 0) for i in found}
    late = [i for i in found if comparison.beyond_rounding(found[i], {}, steps[i])]
    measured = rounding.measure(arguments, replay) if late else {}
    for i in late:
        for difference in found[i]:
            if comparison.beyond_rounding([difference], measured, steps[i]):
                print(f"mpchain: {difference}; that is more than rounding")
                return 1
    print(f"mpchain: fingerprints of {n} updates are equal up to rounding ({first})")
    return 0


def _take_environment(about, arguments):
    """Starts this process anew if numbers of threads are others than those of the run."""
    threads = about["threads"]
    if {name: os.environ.get(name) for name in threads} != threads:
        os.environ.update(threads)
        os.execv(sys.executable, [sys.executable, "-m", "mpchain.replays", *arguments])


if __name__ == "__main__":
    sys.exit(main())
