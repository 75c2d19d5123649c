"""Installs, by pip, a wheel that makes ``import chainer`` import mpchain in an environment."""

import base64
import hashlib
import importlib.metadata
import os
import pathlib
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

VERSION = "7.8.1+mpchain"
SUMMARY = "mpchain compatibility shim, not Chainer"
_WHEEL = "chainer-7.8.1+mpchain-py3-none-any.whl"
_INFO = "chainer-7.8.1+mpchain.dist-info"
PACKAGES = pathlib.Path(__file__).parent / "packages"
_METADATA = f"""Metadata-Version: 2.1
Name: chainer
Version: {VERSION}
Summary: {SUMMARY}
Author: the mpchain developers
License: MIT
Requires-Dist: mpchain
Provides-Extra: test

Programs and packages that import chainer, chainermn or chainerx run on mpchain.
`python -m mpchain.compat uninstall` removes it.
"""


def build(folder: pathlib.Path) -> pathlib.Path:
    """Writes the wheel into a folder; returns its path."""
    files = {
        path.relative_to(PACKAGES).as_posix(): path.read_text("utf-8")
        for path in sorted(PACKAGES.glob("*/__init__.py"))
    }
    files[f"{_INFO}/METADATA"] = _METADATA
    files[f"{_INFO}/WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: mpchain.compat\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    files[f"{_INFO}/top_level.txt"] = "chainer\nchainermn\nchainerx\n"
    record = [f"{name},sha256={_digest(text)},{len(text.encode())}" for name, text in files.items()]
    files[f"{_INFO}/RECORD"] = "\n".join([*record, f"{_INFO}/RECORD,,", ""])
    path = folder / _WHEEL
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return path


def _digest(text):
    digest = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def installed() -> str | None:
    """Returns the version of the distribution ``chainer`` in this environment, or None."""
    try:
        return importlib.metadata.version("chainer")
    except importlib.metadata.PackageNotFoundError:
        return None


def install(ask: bool = True) -> int:
    """Installs the shim with pip; returns the exit status.

    Args:
        ask: whether to ask the user before changing an environment that is not virtual.
    """
    version = installed()
    if version is not None and version != VERSION:
        print(
            f"chainer {version} is installed here: the shim would replace it. Uninstall it first "
            "(pip uninstall chainer), or use another environment.",
            file=sys.stderr,
        )
        return 1
    if version is None and (strangers := _folders_of_nobody()):
        print(
            f"{', '.join(map(str, strangers))}: no installed package owns this, and the shim "
            "would overwrite it. Move it elsewhere first, or use another environment.",
            file=sys.stderr,
        )
        return 1
    in_environment = sys.prefix != sys.base_prefix
    if ask and not in_environment and not _agreed():
        return 1
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(pathlib.Path(folder))
        command = ["install", "--no-deps", "--no-index", "--force-reinstall", str(wheel)]
        status = _pip(*command)
    if status == 0:
        print(
            f"import chainer, chainermn and chainerx now import mpchain in {sys.prefix}.\n"
            f"pip freeze shows it as chainer=={VERSION} (from a file). "
            "python -m mpchain.compat uninstall takes it back."
        )
    return status


def _folders_of_nobody():
    """Returns the folders that the shim would install but that already exist."""
    folder = pathlib.Path(sysconfig.get_path("purelib"))
    names = [path.name for path in sorted(PACKAGES.glob("*/"))]
    return [folder / name for name in names if os.path.lexists(folder / name)]


def _agreed():
    print(f"{sys.prefix} is not a virtual environment. Install the package chainer there?")
    try:
        return input("[y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def uninstall() -> int:
    """Removes the shim with pip; returns the exit status."""
    version = installed()
    if version != VERSION:
        found = "no package chainer" if version is None else f"chainer {version}"
        print(f"the shim is not installed here: there is {found}", file=sys.stderr)
        return 1
    return _pip("uninstall", "--yes", "chainer")


def _pip(*arguments):
    return subprocess.run([sys.executable, "-m", "pip", *arguments], check=False).returncode
