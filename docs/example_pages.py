"""Generates the pages of the examples: their list, and each one's README and scripts."""

import pathlib

from reference import save

from examples.__main__ import find_examples, title_of

INDEX = """\
Examples
========

Each script does one task and reads from top to bottom; all but those of ``double_backward`` run in
one process and on N ranks. An installation with pip contains all of them: copy one to your folder,
run it, change it.

.. code-block:: sh

   python -m mpchain.examples copy glance
   python glance/train_table.py
   mpchain-launch -n 2 glance/train_table.py

With ``--test``, which the same scripts have, a script takes seconds and downloads nothing;
``--help`` prints its options. The pages show what each script prints, how long it takes, and its
code. Read ``glance`` first.
"""
TABLE = """
{}
{}

.. list-table::
   :header-rows: 1
   :width: 100%
   :widths: 20 80

   * - Example
     - What it does, and its script
"""
GROUPS = {
    "First steps": "glance mnist own_link own_function own_extension double_backward",
    "Images": "convnets cifar imagenet fine_tuning vae dcgan",
    "Text": "text_classification ptb seq2seq gpt word2vec crf_tagging tree_lstm",
    "Science and control": "physics_informed maml wgan_gp dqn",
    "Several ranks": "pipeline parallel_convolution own_gradient_compression",
}
"""Names of examples by what they are about, in the order in which to read them."""

CODE = """
## {1}

```{{literalinclude}} ../../examples/{0}/{1}
```
"""


def write(folder: pathlib.Path) -> None:
    """Writes one file per example, and their list."""
    text, found = INDEX, find_examples()
    groups = {title: names.split() for title, names in GROUPS.items()}
    if others := sorted(found.keys() - {name for names in groups.values() for name in names}):
        groups["Others"] = others
    for title, names in groups.items():
        text += TABLE.format(title, "-" * len(title))
        text += "".join(_row(name, found[name]) for name in names)
    for name, scripts in found.items():
        readme = (scripts[0].parent / "README.md").read_text("utf-8")
        code = "".join(CODE.format(name, script.name) for script in scripts)
        save(folder / f"{name}.md", readme + code)
    contents = "".join(f"   {name}\n" for name in found)
    save(folder / "index.rst", f"{text}\n.. toctree::\n   :hidden:\n\n{contents}")


def _row(name, scripts):
    lines = [f"| {title_of(script)}\n       | ``{script.name}``" for script in scripts]
    return f"   * - :doc:`{name} <{name}>`\n     - " + "\n       ".join(lines) + "\n"
