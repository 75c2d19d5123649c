"""Finds the names by which code reads attributes, globals and modules."""

import dis
import types
from collections.abc import Iterator
from typing import NamedTuple

# These functions take the attribute's name as their second argument.
_READING = {"getattr", "hasattr"}
_ANY_NAME = {"vars", "globals", "locals", "__dict__", "__getattribute__", "attrgetter", "eval"}
_ANY_NAME |= {"exec", "asdict", "astuple", "fields", "methodcaller"}
_BY_TEXT = {*_READING, *_ANY_NAME, "setattr", "import_module", "__import__", "modules"}
_ATTRIBUTES = "LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "LOAD_SUPER_ATTR"
_SKIPPED = "COPY", "EXTENDED_ARG", "PUSH_NULL", "PRECALL", "NOT_TAKEN"


class Read(NamedTuple):
    """The names that a function's code reads.

    Attributes:
        attributes: pairs of the name of a variable (None for other expressions) and the name of the
            attribute of its value that is read or set.
        as_text: names that appear as strings, as in ``getattr(x, "name")``.
        modules: names that may belong to imported modules, such as all strings in code that imports
            by name.
        has_computed: whether attributes may be read by names that the code computes.
    """

    attributes: set[tuple[str | None, str]]
    as_text: set[str]
    modules: set[str]
    has_computed: bool


def parts(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yields the code of a function and of its nested functions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from parts(constant)


def read_by(code: types.CodeType) -> Read:
    """Returns the names that code reads, excluding its nested functions.

    Example:
        >>> from mpchain.captured.code_names import read_by
        >>> read_by((lambda x: x.rate * getattr(x, "scale")).__code__).as_text
        {'scale'}
        >>> read_by((lambda x, name: getattr(x, name)).__code__).has_computed
        True
    """
    instructions = [i for i in dis.get_instructions(code) if i.opname not in _SKIPPED]
    names = {*code.co_names}
    texts = {x for x in code.co_consts if type(x) is str} if names & _BY_TEXT else set()
    imported = {i.argval for i in instructions if i.opname == "IMPORT_NAME"}
    for module in [*imported]:
        imported |= {f"{module}.{name}" for name in names}
    return Read(
        attributes={*_attributes(instructions)},
        as_text={x for x in texts if x.isidentifier()},
        modules=imported | texts,
        has_computed=bool(names & _ANY_NAME)
        or any(i.opname.startswith("MATCH_CLASS") for i in instructions)
        or (bool(names & _READING) and _reads_computed(instructions)),
    )


def _attributes(instructions) -> Iterator[tuple[str | None, str]]:
    before = None
    for instruction in instructions:
        name = instruction.argval if isinstance(instruction.argval, str) else None
        if name and instruction.opname in _ATTRIBUTES:
            yield before, name
        before = name if instruction.opname.startswith("LOAD_") else None


def _reads_computed(instructions) -> bool:
    """Returns whether a call of getattr or hasattr may take a name that is not a constant."""
    return any(
        i.argval in _READING
        and not (i.opname == "LOAD_GLOBAL" and _is_given_a_constant(instructions[at + 1 :]))
        for at, i in enumerate(instructions)
        if i.opname.startswith("LOAD_") and type(i.argval) is str
    )


def _is_given_a_constant(following) -> bool:
    """Returns whether the call that follows certainly has a constant second argument."""
    depth, starts = 0, []  # starts holds the instructions at which arguments begin
    for at, instruction in enumerate(following):
        if instruction.opname.startswith("CALL") and depth == instruction.arg:
            ends = [*starts[2:], at]
            only = following[starts[1]] if len(starts) > 1 else None
            return (
                only is not None
                and ends[0] == starts[1] + 1
                and only.opname == "LOAD_CONST"
                and type(only.argval) is str
            )
        if "JUMP" in instruction.opname:
            return False
        after = depth + dis.stack_effect(instruction.opcode, instruction.arg)
        del starts[max(after, 0) :]
        while len(starts) < after:
            starts.append(at)
        depth = after
    return False
