"""Records the run of a program on ranks, and compares the run in one process with the record."""

import gc
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from mpchain.backends.dtypes import is_half
from mpchain.distributed.extensions import AllreducePersistent
from mpchain.distributed.optimizers.draws import Division
from mpchain.distributed.optimizers.multi_node import MultiNodeOptimizer
from mpchain.optimizer import Optimizer
from mpchain.prove import batches, causes, samples
from mpchain.prove.comparison import (
    FACTOR,
    before,
    best,
    bound,
    gap,
    is_inexact,
    is_number,
    largest,
    rearranged,
    suspects,
)
from mpchain.prove.findings import (
    DifferenceError,
    Finding,
    RefusedError,
    both,
    number,
    values_of,
)
from mpchain.prove.records import Evaluation, Update, load, path_of, save
from mpchain.prove.tracer import Tracer, set_generators
from mpchain.serializer import SerializationError
from mpchain.serializers import NpzDeserializer

UNCLEAR = 1e-5
"""Relative difference above which rounding errors cannot be distinguished from a small fault."""


class Writer(Tracer):
    """Records the updates of a rank.

    Args:
        folder: the folder of the records.
        who: the name of the rank, such as "rank 0".
        steps, doubles: see :class:`~mpchain.prove.tracer.Tracer`.
    """

    def __init__(self, folder: str, who: str, steps: int, doubles: bool = False):
        super().__init__(steps, doubles, os.path.join(folder, "files of ranks"))
        self._folder, self._who = folder, who

    def end_update(self, optimizer: object) -> None:
        save(path_of(self._folder, self._who, self.updates), self.update)

    def finish(self) -> None:
        """Writes the record of the program's end."""
        are_of_ranks = any(o.communicator is not None for o in self.optimizers)
        record = {"updates": self.updates, "are_of_ranks": are_of_ranks, "results": self.results}
        save(path_of(self._folder, self._who, "end"), record)


class Judge(Tracer):
    """Gives the ranks' batches to one process, and compares its results with the ranks' results.

    Args:
        folder: the folder of the ranks' records.
        n_ranks: the number of ranks.
        steps, doubles: see :class:`~mpchain.prove.tracer.Tracer`.

    Attributes:
        functions, parameters: the numbers of compared functions and of compared parameters.
        greatest: the largest relative difference.
    """

    def __init__(self, folder: str, n_ranks: int, steps: int, doubles: bool = False):
        super().__init__(steps, doubles, tempfile.mkdtemp(dir=folder))
        self._folder, self._n_ranks = folder, n_ranks
        self._ranks: list[Update] = []
        self._loss = np.zeros(())  # this array has the dtype of results
        self.functions = self.parameters = 0
        self.greatest = 0.0
        self._is_unclear = self._in_parts = False

    @property
    def _update(self) -> Update:
        assert self.update is not None  # only updates use this property
        return self.update

    def verdict(self) -> str:
        """Compares the last results, and returns the text that the program's end prints.

        Raises:
            DifferenceError: the last results differ.
            RefusedError: there were too few updates.
        """
        if not self.updates:
            raise RefusedError(
                "the program has no multi-node optimizer, because it updates no optimizer at all: "
                "call update of an optimizer that create_multi_node_optimizer returned"
            )
        if min(self._counts.values(), default=0) < self.steps:
            raise RefusedError(
                f"the program makes fewer than {self.steps} updates; ask for fewer by --steps"
            )
        held = [load(path_of(self._folder, f"rank {r}", "end")) for r in range(self._n_ranks)]
        self._compare_results([end["results"] for end in held], self.results, "at the end")
        counts = f"{self.functions} functions, {self.parameters} parameters"
        text = f"proved: {self.steps} steps, {counts}, greatest difference {self.greatest:.0e}"
        names = [name for e, name in self.evaluators.items() if e not in self.evaluated]
        if self._is_unclear:
            text += (
                "\nthis difference is larger than the rounding error of most sums in single "
                "precision: run with --float64, which shows whether it is only rounding"
            )
        if names:
            text += (
                f"\nnot compared: evaluator {', '.join(names)}, which does not run within "
                f"{self.steps} steps: request more by --steps, or use a shorter trigger"
            )
        return text

    def why_unlike(self, first: Update | None) -> str:
        """Returns a text that says where this run in one process differs from the first run in one
        process; an empty string if the two runs are equal.

        Args:
            first: the update of the first run that differed from the ranks' update; None if only
                its final results differed.
        """
        if first is None or self.update is None:  # only results after the last update differ
            return "results of evaluators, or reported values"
        for mine, theirs in zip(self.update.evaluations, first.evaluations):
            for suspect in suspects(theirs.passes, mine.passes):
                return f"{suspect.first}; {causes.UNSEEDED}"
        return ""

    # The tracer calls the public methods below.

    def begin_update(self, optimizer: object) -> None:
        if self.updates == 1:
            self._check_kind()
        self._ranks = self._load(self.updates)
        self._compared, self._took_gradients, self._division = set(), False, None
        if not self._ranks:
            raise RefusedError(f"the ranks made {self.updates - 1} updates, one process more")
        for name in ("kind", "place"):
            self._compare_texts(name)
        self._compare_state("before", f"before the update of {self._update.kind}")
        self._compare_hyperparameters()
        for i, own in enumerate(self._update.iterators):
            held = [u.iterators[i] if i < len(u.iterators) else None for u in self._ranks]
            self._check(samples.of_iterator(held, own, self._have_equal_batches(i)))
        self._compare_results_of_update()
        self._take_over(optimizer)

    def _check_kind(self):
        ends = [load(path_of(self._folder, f"rank {r}", "end")) for r in range(self._n_ranks)]
        if not any(end["are_of_ranks"] for end in ends):
            raise RefusedError(
                "the program has no multi-node optimizer: make one by create_multi_node_optimizer"
            )

    def _load(self, number):
        paths = [path_of(self._folder, f"rank {r}", number) for r in range(self._n_ranks)]
        return [load(path) for path in paths if os.path.exists(path)]

    def _compare_texts(self, name):
        held = [getattr(update, name) for update in self._ranks]
        own = getattr(self._update, name)
        if len(held) < self._n_ranks or {*held} != {own}:
            texts = "; ".join(f"rank {r}: {text}" for r, text in enumerate(held))
            raise self._found(
                f"the optimizer's update, {self._update.place}",
                f"{texts}; one process: {own}",
                causes.OTHER_UPDATES,
            )

    def _compare_hyperparameters(self):
        for name, own in self._update.before.hyperparameters.items():
            held = [update.before.hyperparameters.get(name) for update in self._ranks]
            for rank, value in enumerate(held):
                if value is None or not np.isclose(value, own, rtol=1e-6, atol=0):
                    raise self._found(
                        f"hyperparameter {name} of {self._update.kind}, {self._update.place}",
                        f"{value} on rank {rank}, {own} in one process",
                        causes.HYPERPARAMETER,
                    )

    def _take_over(self, optimizer):
        """Copies the state of the ranks, so that rounding or a fault is not reported twice."""
        first = self._ranks[0].before
        set_generators(first.generators)
        arrays = NpzDeserializer(first.whole)
        try:
            optimizer.target.serialize(arrays["model"])
            optimizer.serialize(arrays["optimizer"])
        except SerializationError:
            for name, param in optimizer.target.namedparams(include_uninit=False):
                param.array[...] = param.device.send(first.params[name])

    def replace(self, evaluation: Evaluation, parts: Sequence, optimizer: Optimizer) -> Sequence:
        e = len(self._update.evaluations) - 1
        if any(e >= len(update.evaluations) for update in self._ranks):
            raise self._found(
                f"the loss function's calls, {self._update.place}",
                f"{[len(update.evaluations) for update in self._ranks]} calls on the ranks, "
                f"{e + 1} or more calls in one process",
                causes.OTHER_UPDATES,
            )
        theirs = [update.evaluations[e] for update in self._ranks]
        held = [b for each in theirs for b, n in zip(each.batches, each.sizes) if n != 0]
        sizes = [n for each in theirs for n in each.sizes if n != 0]
        owners = [r for r, each in enumerate(theirs) for n in each.sizes if n != 0]
        whole, n = batches.joined(held, sizes)
        own = [b for b, n in zip(evaluation.batches, evaluation.sizes) if n != 0]
        own_sizes = [n for n in evaluation.sizes if n != 0]
        is_part, self._in_parts = self._in_parts, _is_accumulating(optimizer)
        is_part |= self._in_parts  # ranks may divide a batch differently
        if not (is_part or batches.have_samples_across([*held, *own], [*sizes, *own_sizes])):
            is_divided = any(not each.is_shared for each in self._update.iterators)
            self._check(samples.of_batch(held, own, owners, is_divided))
        is_counted = not (is_part and not whole)
        if not is_counted:  # the sizes do not count the slices that comm.batch made
            whole, _ = batches.joined(held, [batches.length(b) for b in held])
            own_sizes = [batches.length(b) for b in own]
        own, _ = batches.joined(own, own_sizes)
        if not whole or _equal(whole, own):
            return parts
        at = [i for i, (_, function) in enumerate(parts) if function is not None]
        if len(at) == len(held) > 1:  # these are micro-shards
            return [*self._given(parts, zip(at, held), sizes)]
        size = None if evaluation.sizes[at[0]] is None and None in sizes else n
        if optimizer.communicator is not None and size is not None and is_counted:
            self._set_division(optimizer.communicator, n)
        first = self._given(parts[at[0] : at[0] + 1], [(0, whole)], [size])
        return [*first, *([(0, None)] * (len(parts) - 1))]

    def _given(self, parts, batches_at, sizes):
        held, sizes = dict(batches_at), iter(sizes)
        for i, (n, function) in enumerate(parts):
            if i not in held:
                yield n, function
                continue
            given = held[i]

            def change(path, old, given=given):
                return batches.like(old, given[path]) if path in given else old

            yield next(sizes), batches.changed(function, change)

    def _set_division(self, comm, n):
        """Sets the number of samples that the communicator uses for the batch."""
        held = vars(comm)
        self._division = comm, held.get("divided")
        held["divided"] = Division(mine=slice(0, n), n=n)

    def _check(self, found):
        if found is not None:
            what, values, cause = found
            raise self._found(f"{what}, {self._update.place}", values, cause)

    def _have_equal_batches(self, i):
        """Returns whether ranks and one process get the same batches from an iterator; each rank
        may then use a part of the batch."""
        texts = [
            [batches.samples({"": b}, len(b)) for k, b in u.drawn if k == i and isinstance(b, list)]
            for u in [*self._ranks, self._update]
        ]
        return all(each == texts[0] for each in texts[1:])

    def replace_batch(self, iterator: int, batch: object) -> Any:
        """Returns the ranks' joined batches, if the loss function's arguments contain no batch and
        the ranks have not got the same batches; otherwise, returns ``batch``."""
        ranks = self._load(self.updates + 1)
        seen = [b for u in ranks for e in u.evaluations for b in e.batches]
        if not ranks or any(seen) or len(ranks) < self._n_ranks:
            return batch
        k = sum(number == iterator for number, _ in self._drawn) - 1
        given = [[b for number, b in update.drawn if number == iterator] for update in ranks]
        if not isinstance(batch, list) or any(k >= len(held) for held in given):
            return batch
        if self._samples[iterator].is_shared:
            return batch
        texts = [batches.samples({"": held[k]}, len(held[k])) for held in given]
        if all(text == texts[0] for text in texts[1:]):  # each rank uses a part of the same batch
            return batch
        return [sample for held in given for sample in held[k]]

    def see_gradients(self, evaluation: Evaluation, optimizer: object) -> None:
        e = len(self._update.evaluations) - 1
        self._compare_forward(e)
        self._compare_gradients(e)
        self._took_gradients = self._take_gradients(e, optimizer)

    def end_update(self, optimizer: object) -> None:
        if self._division is not None:
            comm, before = self._division
            vars(comm)["divided"] = before
            if before is None:
                del vars(comm)["divided"]
        for e in range(len(self._update.evaluations)):
            self._compare_forward(e)
        self._compare_state("after", f"after the update of {self._update.kind}")
        self._compare_results_of_update()

    # These methods compare results.

    def _found(self, what, values="", cause=""):
        return DifferenceError(Finding(self.updates, what, values, cause))

    def _note(self, difference, *arrays):
        scale = max([largest(a) for a in arrays if is_inexact(np.asarray(a).dtype)], default=0)
        if scale and np.isfinite(difference.size):
            size = difference.size / scale
            self.greatest = max(self.greatest, size)
            self._is_unclear |= size > UNCLEAR and not any(is_half(a.dtype) for a in arrays)

    def _compare_forward(self, e):
        if e in self._compared or any(e >= len(u.evaluations) for u in self._ranks):
            return
        self._compared.add(e)
        ranks, owners = [], []
        for rank, update in enumerate(self._ranks):
            passes = [p for p in update.evaluations[e].passes if p.n != 0]
            ranks += passes
            owners += [rank] * len(passes)
        one = [p for p in self._update.evaluations[e].passes if p.n != 0]
        self._suspects, self._passes = suspects(ranks, one), (ranks, owners, one)
        if one:
            self.functions = max(self.functions, len(one[0].applications))
        losses = [[(p.n, p.loss) for p in passes] for passes in (ranks, one)]
        self._loss = np.asarray(losses[1][0][1] if one else 0.0)
        if all(loss is not None for side in losses for _, loss in side):
            self._compare_value("the loss", losses[0], losses[1])
        reports = [[p.reports for p in passes] for passes in (ranks, one)]
        for name in reports[1][0] if one else ():
            theirs, own = (
                [_weighted(p.n, held[name]) for p, held in zip(passes, side) if name in held]
                for passes, side in zip((ranks, one), reports)
            )
            self._compare_value(f"reported value {name!r}", theirs, own, one[0].origins.get(name))

    def _compare_value(self, what, ranks, one, last=None):
        if not ranks or not all(is_number(value) for _, value in [*ranks, *one]):
            return
        kind, difference = best(ranks, one)
        if difference is not None and not difference.is_large and kind in ("mean", "alike"):
            self._note(difference, one[0][1])
            return
        values = ", ".join(f"{number(v)} on rank {r}" for r, (_, v) in enumerate(ranks))
        values += f"; {number(one[0][1])} in one process"
        text, cause = f"{what}, {self._update.place}", causes.of_value(ranks, one)
        if what != "the loss" and last is None:  # no function computed the value
            raise self._found(text, values, cause)
        raise self._found_function(text, values, cause, last)

    def _found_function(self, what, values="", cause="", last=None):
        """Returns an error that names the first function whose result differs and that a value is
        computed from; if no function differs, the error names the value.

        Args:
            last: the index of the application that computed the value; None stands for the loss.
        """
        ranks, owners, one = self._passes
        if one:
            last = one[0].last if last is None else last
            for suspect in before(self._suspects, ranks, one[0], last)[:1]:
                n_missed = rearranged(suspect, ranks, one)
                if n_missed == 0:
                    return self._found(what, values, cause)
                if n_missed:
                    text = f"{n_missed} rows that one process computes are on no rank"
                    return self._found(str(suspect.first), text, causes.LEFT_OUT)
                cause = causes.of_function(suspect, ranks, one)
                is_scalar = suspect.one is not None and np.ndim(suspect.one.outputs[0]) == 0
                if is_scalar and self._has_wrong_weights():
                    cause = causes.WEIGHTS
                return self._found(str(suspect.first), values_of(suspect, owners), cause)
            if last is not None and not what.startswith("the averaged"):
                what += f": {one[0].applications[last]}"
        return self._found(what, values, cause)

    def _has_wrong_weights(self):
        """Returns whether ranks have equal weights but different numbers of samples."""
        held = [
            (n, batches.length(b))
            for update in self._ranks
            for e in update.evaluations
            for n, b in zip(e.sizes, e.batches)
        ]
        return len({n for n, _ in held}) == 1 and len({length for _, length in held} - {None}) > 1

    def _compare_gradients(self, e):
        one, ranks = self._update.evaluations[e].gradients, self._gradients(e)
        if one is None or any(held is None for held in ranks):
            return
        known = [g for held in [one, *ranks] for g in held.values() if g is not None]
        floor = 0.1 * max(map(largest, known), default=0.0)
        for name, own in one.items():
            for rank, held in enumerate(ranks):
                theirs = held.get(name)
                a, b = (_zeros(x, y) for x, y in ((theirs, own), (own, theirs)))
                if a is None:
                    continue
                difference = gap(a, b, max(largest(a), largest(b), floor))
                if difference.is_large:
                    raise self._found_function(
                        f"the averaged gradient of parameter {name} of {self._update.kind}, "
                        f"{self._update.place}",
                        both(difference, f"on rank {rank}"),
                        causes.of_gradient([held.get(name) for held in ranks], own, rank),
                    )
                self._note(difference, b, np.float64(floor))

    def _gradients(self, e):
        return [update.evaluations[e].gradients for update in self._ranks]

    def _take_gradients(self, e, optimizer):
        """Copies the ranks' gradients, so that steps can differ only because of the optimizer."""
        held = self._gradients(e)[0]
        if held is None:
            return False
        for name, param in optimizer.target.namedparams(include_uninit=False):
            if param.grad is not None and held.get(name) is not None:
                param.grad = param.device.send(held[name])
        return True

    def _compare_state(self, when, text):
        own, states = getattr(self._update, when), [getattr(u, when) for u in self._ranks]
        self.parameters = max(self.parameters, len(own.params))
        before = self._update.before.params if when == "after" else {}
        # Running values are not compared after an update: an extension may average them later.
        for kind in ("params", "persistents") if when == "before" else ("params",):
            for name, value in getattr(own, kind).items():
                for rank, state in enumerate(states):
                    self._compare_part(
                        kind,
                        name,
                        value,
                        getattr(state, kind),
                        rank,
                        text,
                        before.get(name),
                        states,
                    )

    def _compare_part(self, kind, name, value, held, rank, text, before, states):
        label = "parameter" if kind == "params" else "persistent value"
        what = f"{label} {name} {text}, {self._update.place}"
        if name not in held:
            raise self._found(what, f"rank {rank} has none", causes.OTHER_STATE)
        theirs = held[name]
        if not (is_number(value) and is_number(theirs)):
            return
        if kind == "persistents" and self._is_averaged(name, value, states):
            return
        a, b, tolerance = np.asarray(theirs), np.asarray(value), None
        if before is not None and a.shape == b.shape == before.shape and a.dtype == b.dtype:
            change = max(largest(a - before), largest(b - before))
            tolerance = bound(a, b) / 200 + (1e-4 if self._took_gradients else 1e-2) * change
        difference = gap(a, b, tolerance=tolerance)
        if difference.is_large:
            others = [getattr(state, kind).get(name) for state in states]
            raise self._found(
                what,
                both(difference, f"on rank {rank}"),
                causes.of_state(kind, others, value, "after" if before is not None else text),
            )
        self._note(difference, b)

    def _is_averaged(self, name, value, states):
        """Returns whether an extension averages the ranks' running values and the mean is right."""
        if not any(isinstance(each, AllreducePersistent) for each in gc.get_objects()):
            return False
        sizes = [sum(n or 1 for n in u.evaluations[-1].sizes) for u in self._ranks]
        held = [(n, state.persistents.get(name)) for n, state in zip(sizes, states)]
        difference = best(held, [(None, value)])[1]
        return difference is not None and not difference.is_large

    def _compare_results_of_update(self):
        held = [update.results for update in self._ranks]
        self._compare_results(held, self._update.results, self._update.place)

    def _compare_results(self, held, own, where):
        for key, value in own.items():
            for rank, results in enumerate(held):
                theirs = results.get(key)
                if not (is_number(value) and is_number(theirs)):
                    continue
                scale = max(largest(theirs), largest(value))
                tolerance = FACTOR * scale * 2.0 ** (-40 if self._doubles else -23)
                tolerance = max(tolerance, bound(self._loss, self._loss, scale))
                difference = gap(theirs, value, tolerance=tolerance)
                if difference.is_large:
                    raise self._found(
                        f"{key!r}, which is reported, {where}",
                        both(difference, f"on rank {rank}"),
                        causes.RESULT,
                    )


def _is_accumulating(optimizer):
    return isinstance(optimizer, MultiNodeOptimizer) and not optimizer.current_step.exchanges


def _weighted(n, value):
    if isinstance(value, tuple) and len(value) == 2:
        return float(value[1]), value[0]
    return n, value


def _zeros(x, like):
    return np.zeros_like(like) if x is None and like is not None else x


def _equal(whole, own):
    if whole.keys() != own.keys():
        return False
    names = [n for n in whole]
    return all(
        len(whole[n]) == len(own[n])
        and batches.samples({n: whole[n]}, len(whole[n]))
        == batches.samples({n: own[n]}, len(own[n]))
        for n in names
    )
