"""Prints the text that is generated for a declared function.

Run python -m mpchain.functions.declaring NAME, where NAME is, for example, relu or
convolution_output. The output is the function that users call, then, unless it has one joint
derivative, the functions that compute its gradients as arrays and as Variables. Rewritten formulas
of elementwise functions come before the text that calls them.
"""

import contextlib
import linecache
import re
import sys

from mpchain.functions.declaring import written_out
from mpchain.functions.declaring.declaration import registry


def text_of(name: str) -> str:
    """Returns all text that is generated for a declaration.

    Args:
        name: the function's name in the registry of declarations.

    Raises:
        KeyError: no function is declared under this name.

    Example:
        >>> "backward of relu" in text_of("relu")
        True
    """
    if name not in registry:
        raise KeyError(
            f"declaring: no function {name!r} is declared; declared functions are "
            f"{sorted(registry)}"
        )
    declaration, before = registry[name], set(linecache.cache)
    with contextlib.suppress(TypeError):
        # the first call generates the text, then fails because it has no arguments
        written_out.call(declaration)()
    if declaration.derivatives:
        written_out.pull_arrays(declaration, _stands_for_others, _stands_for_others)
        written_out.pull_variables(declaration, _stands_for_others)
    files = [file for file in linecache.cache if file not in before and _belongs_to(name, file)]
    return "\n".join(f"# {file}\n{''.join(linecache.getlines(file))}" for file in files)


def _belongs_to(name, file):
    match = re.fullmatch(r"<mpchain: (?:backward of |derivative of )?(.*), \d+>", file)
    return match is not None and (match[1] == name or match[1] not in registry)


def _stands_for_others(*args):
    """A placeholder for the functions that the generated text calls. Nothing calls the
    placeholder."""


if __name__ == "__main__":
    import mpchain.functions  # noqa: F401  declares all functions

    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        print(text_of(sys.argv[1]))
    except KeyError as error:
        sys.exit(error.args[0])
