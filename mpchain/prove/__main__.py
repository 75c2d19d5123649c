"""Runs a program for a proof; :mod:`launch.prove` starts this module."""

import argparse
import os
import random
import runpy
import sys

import numpy as np

from mpchain.configuration import global_config
from mpchain.prove.findings import DifferenceError, RefusedError
from mpchain.prove.judge import Judge, Writer
from mpchain.prove.records import load, path_of, save
from mpchain.prove.tracer import EnoughError

_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


def main(arguments: list[str] | None = None) -> int:
    """Runs the program of a command line as a rank, or as the single process to compare.

    Example:
        >>> main(["ranks", "folder", "2", "3", "train.py"])  # doctest: +SKIP
    """
    parser = argparse.ArgumentParser("python -m mpchain.prove", allow_abbrev=False)
    parser.add_argument("role", choices=("ranks", "one", "again"))
    parser.add_argument("folder")
    parser.add_argument("n_ranks", type=int)
    parser.add_argument("steps", type=int)
    parser.add_argument("--float64", action="store_true")
    parser.add_argument("-m", dest="is_module", action="store_true")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    rank = 0
    if options.role == "ranks":
        rank = next((int(os.environ[v]) for v in _RANK_VARIABLES if v in os.environ), 0)
    # Unseeded random numbers differ between ranks, but are the same in each proof.
    random.seed(rank)
    np.random.seed(rank)
    if options.float64:
        global_config.dtype = np.float64
    if options.role == "ranks":
        return _run_rank(options, rank)
    return _run_one(options)


def _run_rank(options, rank):
    tracer = Writer(options.folder, f"rank {rank}", options.steps, options.float64)
    with tracer:
        _run(options)
    tracer.finish()
    return 0


def _run_one(options):
    judge = Judge(options.folder, options.n_ranks, options.steps, options.float64)
    first = path_of(options.folder, "one", "difference")
    try:
        with judge:
            _run(options)
        text, is_same = judge.verdict(), True
        if options.role == "again":  # the first run differed
            text, is_same = _refusal("the first run differed from the ranks, the second did not")
    except DifferenceError as error:
        text, is_same = str(error.finding), False
        if options.role == "one":
            save(first, (text, judge.update))
        else:
            before, update = load(first)
            if before != text and (why := judge.why_unlike(update)):
                text, is_same = _refusal(why)
    except RefusedError as error:
        text, is_same = f"refused: {error}", None
    save(path_of(options.folder, options.role, "verdict"), {"text": text, "is_same": is_same})
    return 0


def _refusal(why):
    text = (
        f"refused: two runs of the program in one process differ, so nothing can be proved: {why}"
    )
    return text, None


def _run(options):
    """Runs the program until it has done enough updates, or until it ends."""
    name, *arguments = options.program
    sys.argv = [name, *arguments]
    try:
        if options.is_module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(name)))
            runpy.run_path(name, run_name="__main__")
    except EnoughError:
        return
    except SystemExit as error:
        if error.code not in (None, 0):
            raise


if __name__ == "__main__":
    raise SystemExit(main())
