"""Generates the pages of the API reference from what the packages export.

A name is public if a package's ``__init__.py`` imports it from a module of the package, at once or
on first use, or ``as`` itself, or lists it in ``__all__``, or if a module that is listed here
defines it. The family is the module that the name comes from.
"""

import ast
import collections
import functools
import importlib
import inspect
import re

from docutils import nodes
from sphinx import addnodes
from sphinx.ext.napoleon import GoogleDocstring

from mpchain import annexes

# Each page: its title and the modules that it describes.
PAGES = {
    "core": (
        "Variables, functions and links",
        "mpchain mpchain.variable mpchain.random mpchain.link_hook",
    ),
    "functions": ("Functions", "mpchain.functions"),
    "links": (
        "Links",
        "mpchain.links mpchain.links.model.vision.vgg mpchain.links.model.vision.googlenet "
        "mpchain.links.model.vision.resnet mpchain.links.model.vision.pretrained "
        "mpchain.links.caffe",
    ),
    "initializers": ("Initializers", "mpchain.initializers mpchain.initializers.initializer"),
    "optimizers": (
        "Optimizers",
        "mpchain.optimizers mpchain.optimizer_hooks mpchain.optimizer",
    ),
    "hooks": ("Hooks", "mpchain.function_hooks mpchain.link_hooks"),
    "distributions": ("Probability distributions", "mpchain.distributions"),
    "data": (
        "Data sets and iterators",
        "mpchain.dataset mpchain.dataset.tabular mpchain.datasets mpchain.datasets.transforms "
        "mpchain.iterators",
    ),
    "serializers": ("Serializers", "mpchain.serializers"),
    "training": (
        "Training",
        "mpchain.training mpchain.training.updaters mpchain.training.triggers "
        "mpchain.training.extensions",
    ),
    "distributed": (
        "Several ranks",
        "mpchain.distributed mpchain.distributed.communicators mpchain.distributed.optimizers "
        "mpchain.distributed.gradients.compression mpchain.distributed.checkpoints "
        "mpchain.distributed.extensions mpchain.distributed.datasets "
        "mpchain.distributed.datasets.scatter "
        "mpchain.distributed.iterators mpchain.distributed.updaters "
        "mpchain.distributed.functions mpchain.distributed.links "
        "mpchain.distributed.global_except_hook mpchain.distributed.testing",
    ),
    "devices": (
        "Devices",
        "mpchain.backend mpchain.backends.cuda mpchain.device_resident",
    ),
    "tools": (
        "Tools",
        "mpchain.profiling mpchain.metrics mpchain.transforms mpchain.gradient_check "
        "mpchain.testing "
        "mpchain.testing.attr mpchain.testing.condition mpchain.computational_graph "
        "mpchain.configuration mpchain.warnings mpchain.utils "
        "mpchain.utils.type_check mpchain.utils.sparse mpchain.utils.conv mpchain.utils.conv_nd "
        "mpchain.utils.imgproc mpchain.utils.argument mpchain.exporters.caffe "
        "mpchain.exporters.onnx mpchain.interop mpchain.compat",
    ),
}
SPLIT = ("mpchain.functions", "mpchain.links", "mpchain.training.extensions")
"""Modules with a page for each family."""

MODULES = [module for _, modules in PAGES.values() for module in modules.split()]


def _exported(module, later=True):
    """Yields pairs (module that a name comes from, name): first the names that the source imports,
    in its order."""
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                own = node.module.startswith(f"{module.__name__}.") and hasattr(module, "__path__")
                public = alias.asname == alias.name or (own and alias.asname is None)
                public = public and not alias.name.startswith("_")
                if public and not inspect.ismodule(getattr(module, alias.name)):
                    yield node.module, alias.name
    for name in vars(module).get("__all__", ()):
        yield getattr(module, name).__module__, name
    if later and module.__name__ == "mpchain":
        for room, names in module._LATER.items():
            yield from ((f"mpchain.{room}", name) for name in names.split() if room)
    for name, (_, place) in annexes.present(vars(module).get("_OF_ANNEXES", {})).items():
        if later and ":" in place:
            yield f"mpchain.{place.partition(':')[0]}", name


def _defined(module):
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) == module.__name__ and not name.startswith("_"):
            if inspect.isroutine(value) or inspect.isclass(value):
                yield module.__name__, name


def public_names():
    """Returns a dict: for each documented module, for each family, the values by name."""
    found = {}
    for name in MODULES:
        module = importlib.import_module(name)
        families = collections.defaultdict(dict)
        for family, public in [*_exported(module), *_defined(module)]:
            families[family][public] = getattr(module, public)
        seen = set()
        for names in families.values():
            for public in [*names]:
                if public in seen:
                    del names[public]
                seen.add(public)
        found[name] = {family: names for family, names in families.items() if names}
    return found


@functools.cache
def _names(module):
    module = importlib.import_module(module)
    return {name for _, name in [*_exported(module), *_defined(module)]}


@functools.cache
def _at_the_top():
    return {name for _, name in _exported(importlib.import_module("mpchain"), later=False)}


def _home(name, value, module):
    """Returns the module where a value is described: mpchain, or the nearest to its definition."""
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return module
    homes = [m for m in MODULES if name in _names(m)]
    homes = [m for m in homes if getattr(importlib.import_module(m), name) is value]
    if "mpchain" in homes and name in _at_the_top():
        return "mpchain"
    defined = f"{getattr(value, '__module__', None) or module}."
    return max((m for m in homes if defined.startswith(f"{m}.")), key=len, default=module)


def _is_described(cls):
    homes = [importlib.import_module(m) for m in MODULES if cls.__name__ in _names(m)]
    return any(getattr(home, cls.__name__) is cls for home in homes)


def _class(path, cls):
    lines = [f".. autoclass:: {path}", "   :members:"]
    section = (inspect.getdoc(cls) or "").partition("\nAttributes:\n")[2].partition("\n\n")[0]
    if attributes := re.findall(r"^    (\w+)(?: \(|:)", section, re.MULTILINE):
        lines.append(f"   :exclude-members: {', '.join(attributes)}")  # that section lists them
    described = {base for c in cls.__mro__[1:] if _is_described(c) for base in c.__mro__}
    if not described.issuperset(c for c in cls.__mro__[1:] if c.__module__.startswith("mpchain")):
        stop = sorted({c.__name__ for c in described} | {"object"})
        # Members of bases without an entry are listed here.
        lines.append(f"   :inherited-members: {', '.join(stop)}")
    return [*lines, ""]


def _entry(module, listed, value):
    """Returns a pair: the lines that describe a name, and the name under which it is described
    instead, or None."""
    name = listed
    home, own_name = _home(name, value, module), getattr(value, "__name__", name)
    if inspect.isclass(value) and own_name != name and _is_described(value):
        home, name = _home(own_name, value, module), own_name
    if (home, name) != (module, listed):
        return [f".. py:data:: {listed}", "   :no-typesetting:", ""], f"{home}.{name}"
    if inspect.isclass(value) and value.__name__ != name:
        path = f"{value.__module__}.{value.__name__}"
        call = [f".. py:function:: {name}(...)", "", f"   Makes a :py:class:`{path}`.", ""]
        return [*call, *_class(path, value)], None
    if inspect.isclass(value):
        return _class(f"{module}.{name}", value), None
    if callable(value):
        return [f".. autofunction:: {module}.{name}", ""], None
    if type(value).__module__.startswith("mpchain"):
        return [f".. autodata:: {module}.{name}", "   :no-value:", ""], None
    return [f".. py:data:: {name}", ""], None  # its docstring would be that of int or dict


def _heading(text, mark):
    return [text, mark * len(text), ""]


def _summary(family):
    doc = importlib.import_module(family).__doc__ or family
    text = doc.split("\n\n")[0].replace("\n", " ").strip().rstrip(".").replace("``", "")
    return re.sub(r"([|*])", r"\\\1", text)


def _described(module, family, names):
    """Returns the lines that describe a family, and a dict that maps each of its names to the name
    under which it is described elsewhere, or None."""
    entries = {name: _entry(module, name, value) for name, value in names.items()}
    body = [line for entry, _ in entries.values() for line in entry]
    return body, {name: home for name, (_, home) in entries.items()}


def _links_of(homes):
    return [f":py:obj:`{name} <{home}>`" for name, home in homes.items() if home]


def _pages_of_families(module, page, families):
    """Returns the text of the page of each family, by its path, and the lines that list them."""
    texts, rows, hidden = {}, [], []
    for family, names in families.items():
        body, homes = _described(module, family, names)
        title = _summary(family).split(":")[0] if family != module else "Others"
        path = f"{page}/{family.rpartition('.')[2]}"
        own = [name for name in names if not homes[name]]
        if not own:
            hidden += body
            rows += [f"* {', '.join(_links_of(homes))}"]
            continue
        lines = [*_heading(title, "="), f".. py:currentmodule:: {module}", ""]
        if family != module:
            lines += [_summary(family) + ".", ""]
        texts[path] = "\n".join([*lines, *body])
        shown = [f":py:obj:`{name} <{homes[name] or f'{module}.{name}'}>`" for name in names]
        rows += [f"* :doc:`{title} </api/{path}>`: {', '.join(shown)}"]
    toctree = ["", ".. toctree::", "   :hidden:", "", *(f"   /api/{path}" for path in texts), ""]
    return texts, [*hidden, *rows, *toctree]


def _module(module, families):
    lines = [*_heading(f"``{module}``", "-"), f".. py:module:: {module}", ""]
    lines += [_summary(module) + ".", ""]
    elsewhere = []
    for family, names in families.items():
        body, homes = _described(module, family, names)
        elsewhere += _links_of(homes)
        if len(families) > 1 and family != module and not all(homes.values()):
            lines += _heading(_summary(family).split(":")[0], "~")
        lines += body
    if elsewhere:
        lines += ["Described elsewhere: " + ", ".join(elsewhere) + ".", ""]
    return lines


def save(path, text):
    """Writes a file, unless it has this text already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")


def write(folder):
    """Writes one file per page, and one per family for the modules in ``SPLIT``."""
    found = public_names()
    for page, (title, modules) in PAGES.items():
        lines = _heading(title, "=")
        for module in modules.split():
            if module not in SPLIT:
                lines += _module(module, found[module])
                continue
            place = page if module == modules else module.removeprefix("mpchain.")
            texts, rows = _pages_of_families(module, place, found[module])
            lines += [*_heading(f"``{module}``", "-"), f".. py:module:: {module}", ""]
            lines += [_summary(module) + ".", "", *rows]
            for path, text in texts.items():
                save(folder / f"{path}.rst", text)
        save(folder / f"{page}.rst", "\n".join(lines))


def complete(app, what, name, obj, options, lines):
    """Puts the arguments of a general function where a special one only refers to it.

    The docstring of ``convolution_2d`` says that it is ``convolution_nd`` of x (N, C, H, W).
    """
    general = what == "function" and _general(obj)
    if general and not any(line.startswith(":param") for line in lines):
        text = inspect.getdoc(general).partition("\n\n")[2].partition("Example:\n")[0]
        found = GoogleDocstring(text, app.config, app, what, name, general).lines()
        known = inspect.signature(obj).parameters
        fields = [re.match(r":(?:param|type) (\w+):", line) for line in found]
        found = [line for line, field in zip(found, fields) if not field or field[1] in known]
        end = lines.index("") if "" in lines else len(lines)
        lines[end:end] = ["", *found]


def _general(function):
    """Returns the function to which the first paragraph of a function's docstring refers, if it has
    the same arguments and describes them; else None."""
    target = re.search(r":func:`(\w+)`", (inspect.getdoc(function) or "").partition("\n\n")[0])
    found = target and getattr(inspect.getmodule(function), target[1], None)
    if found is None:
        return None
    own, others = inspect.signature(function).parameters, inspect.signature(found).parameters
    return found if "Args:" in inspect.getdoc(found) and {*own} <= {*others} else None


def escape(app, what, name, obj, options, lines):
    """Escapes what reStructuredText would take for markup: formulas contain | and *."""
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = re.split(r"(``.*?``|:\w+:`.*?`)", line)
            parts[::2] = [re.sub(r"(?<!\\)([|*])", r"\\\1", part) for part in parts[::2]]
            lines[i] = "".join(parts)


def resolve(app, env, node, content):
    """Finds what a docstring calls by its last name, in whichever module it is documented.

    Types in signatures may name what has no page.
    """
    parent = node.parent
    while parent is not None:
        if isinstance(parent, (addnodes.desc_signature, nodes.field_list)):
            return content
        parent = parent.parent
    domain, target = env.domains.python_domain, node["reftarget"]
    found = [name for name in domain.objects if name.endswith(f".{target}")]
    if not found:
        return None
    entry = domain.objects[min(found, key=lambda name: (name.count("."), name))]
    uri = app.builder.get_relative_uri(node.get("refdoc", env.docname), entry.docname)
    return nodes.reference("", "", content, refuri=f"{uri}#{entry.node_id}", internal=True)
