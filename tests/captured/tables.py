"""Makes cases from the rows of the suite's tables, captures them, and judges the results.

A case is a step made from a row: a function and its gradients, a link that is trained, an
optimizer, a method of a distribution. It runs twice, eagerly and captured, on the same data, and
the results, gradients and states of each call are compared.
"""

import collections
import contextlib
import functools
import importlib
import pathlib
import types
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import mpchain
import mpchain.functions as F
from mpchain import Variable, optimizer_hooks, optimizers
from mpchain.link import Link
from tests.distributions.table import TABLE as DISTRIBUTIONS
from tests.functions.table import Row, inputs_of, on
from tests.links import table as links
from tests.optimizers.test_rules import CASES as RULES

N_CALLS = 8
N_EQUAL = 4  # the number of first calls with equal data: the recorded calls and one replay
REPLAYED, REFUSED, WRONG = "replayed", "refused", "wrong"
_TESTS = pathlib.Path(__file__).parents[1]


class Case(NamedTuple):
    """A step that is compared with its captured form.

    Attributes:
        table: the name of the table of the row.
        name: the name of the row, unique in its table.
        make: function that makes the step, with its own links and optimizers, and a function that
            returns the state that the step changes.
        draw: function of a seed that makes the arrays of a call.
        config: entries of the configuration for the calls.
        device: the device of the arrays.
        row: for a step that differentiates a function of arrays: the function, a function that
            draws the arrays, and the order of the derivatives.
        training: for a step that trains: a function whose argument is a function that sets up an
            optimizer for a link. It returns three objects: a function of the arrays that returns
            results and a loss; the optimizer; and a function that returns the state.
    """

    table: str
    name: str
    make: Callable[[], tuple[Callable, Callable]]
    draw: Callable[[int], list[np.ndarray]]
    config: dict = {}
    device: str = "@numpy"
    row: tuple[Callable, Callable, int] | None = None
    training: Callable[[Callable], tuple] | None = None

    @property
    def id(self) -> str:
        return f"{self.table}: {self.name}"


class Outcome(NamedTuple):
    """The outcome of a captured case: replayed, refused or wrong, and the reason or the wrong
    result."""

    kind: str
    detail: str = ""


def _nothing():
    return {}


def leaves(value: Any) -> list:
    """Returns the arrays and numbers in nested results."""
    if isinstance(value, Variable):
        return [value.array]
    if isinstance(value, (tuple, list)):
        return [x for item in value for x in leaves(item)]
    if isinstance(value, dict):
        return [x for item in value.values() for x in leaves(item)]
    if isinstance(value, collections.deque):
        return leaves(list(value))
    if hasattr(value, "__dict__") and not isinstance(value, np.ndarray):
        return leaves(vars(value))
    return [value]


def differ(found: Any, expected: Any) -> str | None:
    """Returns how two nested results differ beyond rounding; None if they do not."""
    pairs = leaves(found), leaves(expected)
    if len(pairs[0]) != len(pairs[1]):
        return f"{len(pairs[0])} values for {len(pairs[1])}"
    for x, y in zip(*pairs):
        if x is None or y is None or isinstance(y, str):
            if x is not y and x != y:
                return f"{x} for {y}"
            continue
        x, y = (np.asarray(mpchain.cuda.to_cpu(v)) for v in (x, y))
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"{x.dtype} {x.shape} for {y.dtype} {y.shape}"
        if y.dtype.kind not in "fc":
            if not np.array_equal(x, y):
                return f"{x!r:.60} for {y!r:.60}"
            continue
        # A fused loop has other rounding errors; a stale result differs by far more.
        tolerance = float(np.finfo(y.dtype).eps) ** 0.6
        finite = np.abs(y[np.isfinite(y)])
        scale = tolerance * max(1.0, finite.max(initial=0))
        if not np.allclose(x, y, tolerance, scale, equal_nan=True):
            return f"off by {np.nanmax(np.abs(x - y)):.2g} of {finite.max(initial=0):.2g}"
    return None


def run(
    case: Case, seeds: list[int], capture: Callable | None = None, rank: int | None = None
) -> list:
    """Returns a list: the observations after each call, or its error; then which results later
    calls left unchanged; then the step.

    The observations are the result, the state and the arguments. On several ranks, errors are
    raised, because the other ranks would wait.
    """
    np.random.seed(0)
    step, state = case.make()
    step = step if capture is None else capture(step)
    observed, results = [], []
    for i, seed in enumerate(seeds):
        arrays = [mpchain.get_device(case.device).send(x) for x in case.draw(seed)]
        np.random.seed(i)
        try:
            with contextlib.ExitStack() as stack:
                for name, value in case.config.items():
                    stack.enter_context(mpchain.using_config(name, value))
                result = step(*arrays)
        except Exception as error:
            if rank is not None:
                raise
            observed.append(f"{type(error).__name__}: {error}")
        else:
            results.append((result, _copied(result)))
            observed.append(_copied([result, state(), arrays]))
    return [*observed, [differ(result, copies) is None for result, copies in results], step]


def _copied(values):
    return [x if x is None else np.array(mpchain.cuda.to_cpu(x)) for x in leaves(values)]


def _seeds(has_equal_data, rank):
    """Returns the seeds of the calls: a second rank has other data and, if the first calls have
    equal data, one more of these calls."""
    n_equal = N_EQUAL * has_equal_data
    seeds = [max(i - n_equal - rank * has_equal_data, 0) for i in range(1, n_equal + N_CALLS + 1)]
    return [N_CALLS - seed for seed in seeds] if rank % 2 else seeds


def judge(
    case: Case,
    has_equal_data: bool,
    capture: Callable = mpchain.capture,
    rank: int | None = None,
) -> Outcome:
    """Captures a case, and compares each call with an eager call."""
    seeds = _seeds(has_equal_data, rank or 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        *expected, kept, _ = run(case, seeds, None, rank)
        *found, kept_too, step = run(case, seeds, capture, rank)
    if all(isinstance(x, str) for x in expected):
        raise RuntimeError(f"{case.id} fails eagerly: {expected[0]}")
    for i, (x, y) in enumerate(zip(found, expected, strict=True)):
        if isinstance(x, str) or isinstance(y, str):
            if not (isinstance(x, str) and isinstance(y, str)) or x != y:
                return Outcome(WRONG, f"call {i + 1}: {x!s:.200} for {y!s:.60}")
        elif reason := differ(x, y):
            return Outcome(WRONG, f"call {i + 1}: {reason}")
    # In an eager call, a result may be a parameter or a buffer, which later calls change.
    if any(was_kept and not is_kept for was_kept, is_kept in zip(kept, kept_too, strict=True)):
        return Outcome(WRONG, "a later call changed a result")
    return Outcome(REPLAYED) if step.reason is None else Outcome(REFUSED, step.reason)


def count(outcomes: list[Outcome]) -> Counter:
    return Counter(outcome.kind for outcome in outcomes)


def _trained(table, name, training, draw, config=None):
    """Returns the case of a training."""

    def make():
        compute, optimizer, state = training(lambda rule, link: rule.setup(link))

        def step(*arrays):
            found, loss = compute(*arrays)
            optimizer.target.cleargrads()
            if loss.requires_grad:
                loss.backward()
            optimizer.update()
            return found

        return step, state

    return Case(table, name, make, draw, config or {}, training=training)


# Functions.


def _as_tuple(ys):
    return tuple(ys) if isinstance(ys, (tuple, list)) else (ys,)


def _is_floating(y):
    return isinstance(y, Variable) and y.dtype.kind == "f" and y.requires_grad


def differentiated(function: Callable, n: int, order: int) -> Callable:
    """Returns a step of a function of n arrays: its outputs, and derivatives up to an order.

    The gradients of outputs, and for order 2 the gradients of gradients, are further arguments, so
    that backward computes with no constants.
    """

    def step(*arrays):
        xs = [Variable(x, requires_grad=x.dtype.kind == "f") for x in arrays[:n]]
        ys, gxs, terms = terms_of(function, xs, arrays[n:], order)
        if not terms:
            return ys, gxs
        if order == 2:
            return ys, gxs, mpchain.grad(terms, [x for x in xs if x.requires_grad])
        F.add(*terms).backward()
        return ys, [x.grad for x in xs]

    return step


def terms_of(function: Callable, xs: list, weights: Sequence, order: int) -> tuple:
    """Returns outputs of a function, gradients for order 2, and the terms of a loss of both."""
    ys, weights = _as_tuple(function(*xs)), iter(weights)
    terms = [F.sum(y * next(weights)) for y in ys if _is_floating(y)]
    if order == 0 or not terms:
        return ys, [], []
    if order == 1:
        return ys, [], terms
    inputs = [x for x in xs if x.requires_grad]
    gxs = mpchain.grad([F.add(*terms)], inputs, enable_double_backprop=True)
    terms = [F.sum(gx * w) for gx, w in zip(gxs, weights, strict=True) if gx is not None]
    return ys, gxs, [term for term in terms if term.requires_grad]


def with_weights(function: Callable, arrays: list, order: int) -> list[tuple]:
    """Returns shapes and dtypes of the further arguments of a differentiated function."""
    np.random.seed(0)
    xs = [Variable(x, requires_grad=x.dtype.kind == "f") for x in arrays]
    ys = [y for y in _as_tuple(function(*xs)) if _is_floating(y)]
    specs = [(y.shape, y.dtype) for y in ys]
    return specs + [(x.shape, x.dtype) for x in arrays if order == 2 and x.dtype.kind == "f"]


def _drawn(specs, seed):
    random = np.random.RandomState(1000 + seed)
    return [random.uniform(0.5, 1.5, shape).astype(dtype) for shape, dtype in specs]


def _function_case(table, name, function, draw, order):
    @functools.cache
    def weights():  # The weights are drawn when the case is run.
        return with_weights(function, draw(0), order)

    return Case(
        table,
        name,
        lambda: (differentiated(function, len(draw(0)), order), _nothing),
        lambda seed: [*draw(seed), *_drawn(weights(), seed)],
        row=(function, draw, order),
    )


class OfConstants:
    """A function of a row that also takes its constant arrays, such as labels, as arguments.

    Attributes:
        constants: the constant arrays.
    """

    def __init__(self, function: Callable):
        self._function = function
        self.constants: list[np.ndarray] = []
        self._keys: list[tuple] = []  # the position of each constant: a kind, a key and its number
        if isinstance(function, functools.partial):
            self._note("argument", enumerate(function.args))
            self._note("keyword", function.keywords.items())
        elif getattr(function, "__module__", "").startswith("tests."):
            names = function.__globals__
            self._note("global", ((n, names[n]) for n in function.__code__.co_names if n in names))
            cells = enumerate(function.__closure__ or ())
            self._note("cell", ((i, cell.cell_contents) for i, cell in cells))

    def _note(self, kind, items):
        for key, value in items:
            if isinstance(value, np.ndarray) and value.size > 1:
                known = [i for i, x in enumerate(self.constants) if x is value]
                self._keys.append((kind, key, known[0] if known else len(self.constants)))
                self.constants += [] if known else [value]

    def given(self, values: list) -> Callable:
        """Returns the function with other arrays instead of the constants."""
        function = self._function
        found = {
            kind: {key: values[i] for k, key, i in self._keys if k == kind}
            for kind in ("argument", "keyword", "global", "cell")
        }
        if isinstance(function, functools.partial):
            args = [found["argument"].get(i, x) for i, x in enumerate(function.args)]
            return functools.partial(function.func, *args, **function.keywords | found["keyword"])
        cells = enumerate(function.__closure__ or ())
        closure = [
            types.CellType(found["cell"][i]) if i in found["cell"] else cell for i, cell in cells
        ]
        names = {**function.__globals__, **found["global"]}
        made = types.FunctionType(
            function.__code__, names, None, function.__defaults__, tuple(closure)
        )
        made.__kwdefaults__ = function.__kwdefaults__
        return made


def _shuffled(x, random):
    return random.permutation(x.ravel()).reshape(x.shape)


def _with_shuffled_rows(x, random):
    return random.permutation(x)


def _with_labels(case):
    """Returns the function of a row with labels as arguments, and a function that draws all
    arguments; None if there are no labels, or if they cannot be shuffled.

    Labels are shuffled, or only their rows if not every order is valid, as with boxes.
    """
    labeled = OfConstants(case.function)
    if not labeled.constants:
        return None
    for shuffle in (_shuffled, _with_shuffled_rows):
        function, draw = _of_labels_too(case, labeled, shuffle)
        if _is_valid(functools.partial(_of_variables, function), draw):
            return function, draw
    return None


def _of_variables(function):
    return lambda *arrays: function(*map(Variable, arrays)), _nothing


def _of_labels_too(case, labeled, shuffle):
    n, constants = len(case.shapes), [x.copy() for x in labeled.constants]

    def function(*xs):
        labels = [x.array if isinstance(x, Variable) else x for x in xs[n:]]
        return labeled.given(labels)(*xs[:n])

    def draw(seed):
        random = np.random.RandomState(2000 + seed)
        return [*inputs_of(case, seed=3 + seed), *(shuffle(x, random) for x in constants)]

    return function, draw


def cases_on(device: str, table: str, rows: list[Row]) -> list[Case]:
    """Returns the cases of a table's rows on a device, with orders 1 and 2."""
    cases = []
    for row in rows:
        draw, function = functools.partial(_inputs_of, row), on(device, row.function)
        for order in (1, 2):
            case = _function_case(table, f"{row.name}, order {order}", row.function, draw, order)
            step = differentiated(function, len(row.shapes), order)
            cases.append(case._replace(make=functools.partial(_stateless, step), device=device))
    return cases


def _stateless(step):
    return step, _nothing


def tables_of_functions() -> dict[str, list[Row]]:
    """Returns the tables of functions, by the names of their files."""
    tables = {}
    for path in sorted((_TESTS / "functions").glob("test_*.py")):
        if "\nTABLE = " in path.read_text():
            module = importlib.import_module(f"tests.functions.{path.stem}")
            tables[path.stem.removeprefix("test_")] = module.TABLE
    return tables


def cases_of_functions(table: str, rows: list[Row]) -> list[Case]:
    """Returns the cases of a table: each row with orders 1 and 2, or 0 if it has no derivatives,
    and if it has labels, again with labels that vary."""
    cases = []
    for case in rows:
        for order in (1, 2) if case.orders else (0,):
            draw = functools.partial(_inputs_of, case)
            cases.append(
                _function_case(table, f"{case.name}, order {order}", case.function, draw, order)
            )
        if found := _with_labels(case):
            name = f"{case.name}, labels vary"
            cases.append(_function_case(table, name, *found, min(case.orders, 1)))
    return cases


def _inputs_of(case, seed):
    return inputs_of(case, seed=3 + seed)


# Links.


def state_of(link: Link) -> Callable:
    """Returns a function that returns the state of a link and of its optimizer."""

    def state():
        params = [x for _, p in sorted(link.namedparams()) for x in (p.array, p.grad)]
        rules = [p.update_rule for _, p in sorted(link.namedparams()) if p.update_rule is not None]
        states = [x for rule in rules for _, x in sorted((rule.state or {}).items())]
        return [params, states, [v for _, v in sorted(links.persistents(link).items())]]

    return state


def _link_case(case, table, order):
    shown = [x for x in case.inputs if not isinstance(x, tuple)]

    def training(set_up):
        link = links._with_noise(case)
        optimizer = set_up(optimizers.MomentumSGD(case.lr), link)

        def compute(*arrays):
            xs = [Variable(x) if x.dtype.kind == "f" and order == 2 else x for x in arrays]
            ys = links.flatten(case.call(link, *xs))
            loss = case.loss(*ys)
            inputs = [x for x in xs if isinstance(x, Variable)]
            if order == 2 and inputs and loss.requires_grad:
                gxs = mpchain.grad([loss], inputs, enable_double_backprop=True)
                terms = [F.sum(gx * gx) for gx in gxs if gx is not None and gx.requires_grad]
                loss = F.add(loss, *terms) if terms else loss
            return (ys, loss), loss

        return compute, optimizer, state_of(link)

    def draw(seed):
        random = np.random.RandomState(3 + seed)
        return [
            random.uniform(case.low, case.high, x)
            if isinstance(x, tuple)
            else _new_constant(np.asarray(x), random)
            for x in case.inputs
        ]

    def fixed(seed):
        arrays = draw(seed)
        return [x if isinstance(s, tuple) else np.asarray(s) for s, x in zip(case.inputs, arrays)]

    name = f"{case.name}, order {order}"
    made = _trained(f"links: {table}", name, training, draw, case.config)
    if shown and not _is_valid(made.make, draw):
        return made._replace(draw=fixed)
    return made


def _new_constant(x, random):
    """Returns other labels, or other numbers close by."""
    if x.dtype.kind == "f":
        return x * random.uniform(0.5, 1.5, x.shape)
    return random.permutation(x.ravel()).reshape(x.shape)


def _is_valid(make, draw):
    try:
        step, _ = make()
        for seed in range(N_CALLS + 1):
            np.random.seed(seed)
            step(*draw(seed))
    except Exception:
        return False
    return True


def tables_of_links() -> dict[str, list]:
    """Returns the tables of links, by the names of their files."""
    tables = {}
    for path in sorted((_TESTS / "links").glob("test_*.py")):
        if "\nTABLE = " in path.read_text():
            module = importlib.import_module(f"tests.links.{path.stem}")
            tables[path.stem.removeprefix("test_")] = module.TABLE
    return tables


def cases_of_links(table: str, rows: list) -> list[Case]:
    """Returns the cases of a table: each link is trained, and if it has second derivatives,
    also with gradients of gradients."""
    return [
        _link_case(case, table, order)
        for case in rows
        for order in ((1, 2) if case.orders >= 2 else (1,))
    ]


# Optimizers.


def _optimizer_case(name, arguments, cls, add_hook=None, varies=False):
    def training(set_up):
        random, link = np.random.RandomState(1), Link()
        with link.init_scope():
            link.W = mpchain.Parameter(random.randn(7, 5))
            link.b = mpchain.Parameter(random.randn(5))
        optimizer = set_up(getattr(optimizers, cls)(**arguments), link)
        if add_hook is not None:
            optimizer.add_hook(add_hook())
        rate = next(iter(n for n in ("alpha", "lr") if n in optimizer.hyperparam.get_dict()), None)
        n_calls = 0

        def compute(g, x):
            loss = F.sum(link.W * g) + F.sum(F.tanh(link.b * x))
            return loss, loss

        def state():
            nonlocal n_calls
            n_calls += 1
            if varies and rate is not None:  # the rate changes between the calls
                setattr(optimizer, rate, getattr(optimizer, rate) / (1 + 0.5 * n_calls))
            return state_of(link)()

        return compute, optimizer, state

    def draw(seed):
        random = np.random.RandomState(seed)
        return [random.randn(7, 5), random.randn(5)]

    return _trained("optimizers", name, training, draw)


HOOKS = {
    "WeightDecay": lambda: optimizer_hooks.WeightDecay(0.1),
    "Lasso": lambda: optimizer_hooks.Lasso(0.1),
    "GradientHardClipping": lambda: optimizer_hooks.GradientHardClipping(-0.5, 0.5),
    "GradientNoise": lambda: optimizer_hooks.GradientNoise(0.1),
    "GradientLARS": lambda: optimizer_hooks.GradientLARS(),
    "GradientClipping": lambda: optimizer_hooks.GradientClipping(0.5),
}


def cases_of_optimizers() -> list[Case]:
    """Returns the cases of optimizers: each rule, with a fixed and a changing rate, and each
    hook."""
    cases = []
    for name, (cls, arguments, *_) in RULES.items():
        cases.append(_optimizer_case(name, arguments, cls))
        cases.append(_optimizer_case(f"{name}, rate varies", arguments, cls, varies=True))
    for name, make_hook in HOOKS.items():
        cases.append(_optimizer_case(f"hook {name}", {}, "SGD", make_hook))
    return cases


# Distributions.


def _params_at(case, seed):
    """Returns parameters between the two sets of parameters in the row."""
    share = np.random.RandomState(seed).uniform() if seed else 0.0
    return [(1 - share) * p + share * q for p, q in zip(case.params, case.other)]


def _points_at(case, seed):
    points = case._replace(params=tuple(_params_at(case, seed))).points()
    return np.random.RandomState(seed).permutation(points)


def _method(case, name):
    n = len(case.params)
    if name == "kl_divergence":
        function = lambda *p: mpchain.kl_divergence(case.make(*p[:n]), case.make(*p[n:]))
        draw = lambda seed: [*_params_at(case, seed), *_params_at(case, seed + 100)]
    elif name == "sample":
        function = lambda *p: case.make(*p).sample(2)
        draw = lambda seed: _params_at(case, seed)
    elif name in case.properties:
        function = lambda *p: getattr(case.make(*p), name)
        draw = lambda seed: _params_at(case, seed)
    else:
        points = _probabilities if name == "icdf" else functools.partial(_points_at, case)
        function = lambda *p: getattr(case.make(*p[1:]), name)(
            p[0].array if case.discrete else p[0]
        )
        draw = lambda seed: [points(seed), *_params_at(case, seed)]
    return function, draw


def _probabilities(seed):
    return np.random.RandomState(seed).uniform(0.05, 0.95, (4, 2, 3))


def cases_of_distributions() -> list[Case]:
    """Returns the cases of distributions: each method, with orders 1 and 2."""
    cases = []
    for case in DISTRIBUTIONS:
        names = ["log_prob", "prob", "perplexity", "sample", "kl_divergence"]
        for name in [*names, *case.properties, *case.functions]:
            function, draw = _method(case, name)
            for order in (1, 2):
                title = f"{case.name}.{name}, order {order}"
                cases.append(_function_case("distributions", title, function, draw, order))
    return cases


# All of them.

MAKERS: dict[str, Callable[[], list[Case]]] = {
    **{n: functools.partial(cases_of_functions, n, t) for n, t in tables_of_functions().items()},
    **{
        f"links: {n}": functools.partial(cases_of_links, n, t) for n, t in tables_of_links().items()
    },
    "optimizers": cases_of_optimizers,
    "distributions": cases_of_distributions,
}
"""Maps the name of a table to the function that makes its cases."""
