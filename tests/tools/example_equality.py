"""Runs ``examples/mnist/train_mnist.py`` in float64 on several numbers of ranks, and compares.

The seed and the global batch are the same.
"""

import json
import pathlib
import tempfile

import numpy as np

from tests.distributed import ranks

SCRIPT = ranks.ROOT / "examples" / "mnist" / "train_mnist.py"
LIMIT = 1e-12


def train(n_ranks, time_limit, **options):
    """Runs the example, with a time limit in seconds.

    Returns:
        The losses (training and validation, by epoch) and the final parameters by name.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = [f"--{name}={value}" for name, value in options.items()]
        command = [str(SCRIPT), "--double", f"--out={folder}", *arguments]
        status, outputs, own_output = ranks.run(n_ranks, command, timeout=time_limit)
        if status != 0 or f"{n_ranks} rank(s)" not in outputs[0]:
            raise RuntimeError(ranks.report(status, outputs, own_output))
        log = json.loads(pathlib.Path(folder, "log").read_text())
        losses = [[entry["main/loss"], entry["validation/main/loss"]] for entry in log]
        snapshots = sorted(
            pathlib.Path(folder).glob("snapshot_iter_*"), key=lambda file: int(file.name[14:])
        )
        with np.load(snapshots[-1]) as arrays:
            model = "updater/model:main/"
            parameters = {key: arrays[key] for key in arrays if key.startswith(model)}
    return np.array(losses), parameters


def differences(result, reference):
    """Returns the largest relative difference of the losses, and of the parameters."""
    losses, parameters = result
    reference_losses, reference_parameters = reference
    assert parameters.keys() == reference_parameters.keys() and len(parameters) > 0
    return (
        np.abs(losses / reference_losses - 1).max(),
        max(
            np.abs(parameters[name] - expected).max() / np.abs(expected).max()
            for name, expected in reference_parameters.items()
        ),
    )


def compare(numbers_of_ranks, time_limit=600, **options):
    """Yields (number of ranks, difference of losses, difference of parameters) from one rank."""
    reference = train(1, time_limit, **options)
    for n_ranks in numbers_of_ranks:
        yield n_ranks, *differences(train(n_ranks, time_limit, **options), reference)
