"""``python -m mpchain.examples`` lists the examples, and copies an example to a folder."""

import argparse
import ast
import pathlib
import shutil
import sys

HERE = pathlib.Path(__file__).parent


def find_examples() -> dict[str, list[pathlib.Path]]:
    """Returns the scripts of each example, by the example's name."""
    folders = sorted(path for path in HERE.iterdir() if path.is_dir())
    found = {folder.name: sorted(folder.glob("*.py")) for folder in folders}
    return {name: scripts for name, scripts in found.items() if scripts}


def title_of(script: pathlib.Path) -> str:
    """Returns the first line of a script's docstring."""
    return ast.get_docstring(ast.parse(script.read_text("utf-8"))).splitlines()[0]


def list_examples() -> None:
    """Prints the name of each example, its scripts, and their titles."""
    for name, scripts in find_examples().items():
        for script in scripts:
            print(f"{name:24} {script.name:29} {title_of(script)}")


def copy_example(name: str, folder: str) -> int:
    """Copies an example into a folder; returns the exit status."""
    if name not in find_examples():
        print(f"there is no example {name!r}; see: python -m mpchain.examples list")
        return 2
    target = pathlib.Path(folder, name)
    if target.exists():
        print(f"{target} exists already; remove it, or name another folder: copy {name} --to DIR")
        return 2
    shutil.copytree(HERE / name, target, ignore=shutil.ignore_patterns("__pycache__", "result"))
    print(f"copied to {target}; now run: python {target / find_examples()[name][0].name} --help")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    parser = argparse.ArgumentParser("python -m mpchain.examples", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="print the names of the examples")
    copy = commands.add_parser("copy", help="copy an example into the current folder")
    copy.add_argument("name", help="one of the names that list prints")
    copy.add_argument("--to", default=".", help="folder in which the example's folder is made")
    args = parser.parse_args(arguments)
    if args.command == "copy":
        return copy_example(args.name, args.to)
    list_examples()
    return 0


if __name__ == "__main__":
    sys.exit(main())
