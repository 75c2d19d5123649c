"""Generates the pages of the examples: their list, and each one's README and scripts."""

import pathlib

from reference import save

from examples.__main__ import find_examples, title_of

INDEX = """\
Examples
========

Each task is one script, which reads from top to bottom and is the same for one process and for N
ranks. An installation with pip contains all of them: copy one to your folder, run it, change it.

.. code-block:: sh

   python -m mpchain.examples copy glance
   python glance/train_table.py
   mpchain-launch -n 2 glance/train_table.py

With ``--test`` a script takes seconds and downloads nothing; ``--help`` prints its options. The
pages show what each script prints, how long it takes, and its code. Read ``glance`` first.

.. list-table::
   :header-rows: 1
   :widths: auto

   * - Example
     - What it does, and its script
"""
CODE = """
## {1}

```{{literalinclude}} ../../examples/{0}/{1}
```
"""


def write(folder: pathlib.Path) -> None:
    """Writes one file per example, and their list."""
    rows, found = "", find_examples()
    for name, scripts in found.items():
        lines = [f"| {title_of(script)}\n       | ``{script.name}``" for script in scripts]
        rows += f"   * - :doc:`{name} <{name}>`\n     - " + "\n       ".join(lines) + "\n"
        readme = (scripts[0].parent / "README.md").read_text("utf-8")
        code = "".join(CODE.format(name, script.name) for script in scripts)
        save(folder / f"{name}.md", readme + code)
    contents = "".join(f"   {name}\n" for name in found)
    save(folder / "index.rst", f"{INDEX}{rows}\n.. toctree::\n   :hidden:\n\n{contents}")
