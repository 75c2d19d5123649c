"""Captures every row of the suite's tables, and prints how many are replayed, refused and wrong.

``python -m tests.tools.captured_tables`` does this with new data in each call, and with equal data
in the recorded calls, and prints a line per table; arguments are the names of tables. With
``--reasons`` it also prints each refused row with its reason. With ``--ranks 2``, the rows are
steps of a multi-node optimizer on two ranks, whose data differ.
"""

import argparse
import os
import sys
from collections import Counter

from mpchain.distributed.communicators import MpiCommunicator
from tests.captured.ranks import judge_on_ranks
from tests.captured.tables import MAKERS, REFUSED, REPLAYED, WRONG, judge
from tests.distributed import ranks


def on_ranks(n):
    """Runs this program on ranks, with the same arguments; returns its exit status."""
    command = ["-m", "mpi4py", "-m", "tests.tools.captured_tables", *sys.argv[1:]]
    status, outputs, own_output = ranks.run(n, command, timeout=3600)
    print(outputs[0] if status == 0 else ranks.report(status, outputs, own_output))
    return status


def communicator():
    """Returns the communicator of all ranks; None if there is one process."""
    if ranks.MARK not in os.environ:
        return None
    from mpi4py import MPI

    return MpiCommunicator(MPI.COMM_WORLD)


def outcomes_of(cases, has_equal_data, comm):
    """Returns the outcomes of cases, in this process or on all ranks."""
    if comm is not None:
        return judge_on_ranks(cases, has_equal_data, comm)
    return [judge(case, has_equal_data) for case in cases]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", help="names of tables; default: all")
    parser.add_argument("--reasons", action="store_true", help="prints why rows are refused")
    parser.add_argument("--ranks", type=int, default=1, help="number of ranks; default: 1")
    options = parser.parse_args()
    comm = communicator()
    if comm is None and options.ranks > 1:
        return on_ranks(options.ranks)
    totals, reasons = Counter(), Counter()
    print(f"{'table':28} rows   new: replayed refused wrong   equal: replayed refused wrong")
    for name in options.tables or MAKERS:
        cases, line, notes = MAKERS[name](), [], []
        for has_equal_data in (False, True):
            outcomes = outcomes_of(cases, has_equal_data, comm)
            kinds = Counter(outcome.kind for outcome in outcomes)
            line += [kinds[kind] for kind in (REPLAYED, REFUSED, WRONG)]
            for case, outcome in zip(cases, outcomes):
                if outcome.kind == WRONG:
                    data = "equal" if has_equal_data else "new"
                    notes.append(f"    {case.name} ({data} data): {outcome.detail}")
                elif outcome.kind == REFUSED:
                    reasons[outcome.detail.partition(" (")[0]] += 1
                    if options.reasons:
                        notes.append(f"    {case.name}: {outcome.detail}")
        print(f"{name:28} {len(cases):4} {line[0]:15} {line[1]:7} {line[2]:5}", end="")
        print(f" {line[3]:17} {line[4]:7} {line[5]:5}", flush=True)
        for note in notes:
            print(note)
        totals.update(rows=len(cases))
        totals.update({i: n for i, n in enumerate(line)})
    print(f"{'all':28} {totals['rows']:4} {totals[0]:15} {totals[1]:7} {totals[2]:5}", end="")
    print(f" {totals[3]:17} {totals[4]:7} {totals[5]:5}")
    for reason, n in reasons.most_common():
        print(f"{n:5} refused: {reason}")
    return 1 if totals[2] or totals[5] else 0


if __name__ == "__main__":
    sys.exit(main())
