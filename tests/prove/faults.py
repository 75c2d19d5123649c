"""Faults that make ranks compute something else than one process: a name, what is planted, and what
the proof must say.

The line with the comment ``# here`` must be named, or else the texts of ``says``.
"""

from typing import NamedTuple

from tests.prove.programs import BACKWARD, GAN, SCATTERED, UPDATER


class Fault(NamedTuple):
    """A fault: lines for places of the program, and what the proof says besides the line."""

    slots: dict
    says: tuple = ()


HERE = "  # here"

FAULTS = {
    "mean over counts": Fault(
        {"losses": "return F.sum(l * m) / max(m.sum(), 1)" + HERE}, ("mean over counts",)
    ),
    "numpy.random in the network": Fault(
        {"hidden": "h = h + np.random.normal(size=h.shape).astype(np.float32)" + HERE},
        ("draws outside of mpchain.random", "numpy.random"),
    ),
    "batch normalization": Fault(
        {"links": "self.bn = L.BatchNormalization(8)", "hidden": "h = self.bn(h)" + HERE},
        ("statistics of a batch",),
    ),
    "rank-dependent code": Fault(
        {"hidden": "if comm.rank == 0 < comm.size - 1:\n    h = F.relu(h)" + HERE},
        ("rank-dependent code",),
    ),
    "weight decay on one rank": Fault(
        {
            "setup": "if comm.rank == 1:\n    optimizer.add_hook(mpchain.optimizer_hooks."
            "WeightDecay(0.01))"
        },
        ("parameter /l", "after the update of Adam", "a hook"),
    ),
}

SOUND = {
    "own loop": {},
    "updater": {"loop": UPDATER},
    "scattered data": {"loop": SCATTERED},
    "backward": {"loop": BACKWARD, "output": "return self.l2(h)"},
    "GAN": {"loop": GAN},
}
