"""Steps of the optimizers, and of the hooks that draw no noise, by names that mpchain and Chainer
share.

``python optimizers.py chainer FOLDER`` writes Chainer's results into ``FOLDER``.
"""

import importlib
import pathlib
import sys
import warnings

import numpy as np

N_STEPS = 50
OPTIMIZERS = {
    "SGD": ("SGD", {}),
    "MomentumSGD": ("MomentumSGD", {}),
    "CorrectedMomentumSGD": ("CorrectedMomentumSGD", {}),
    "NesterovAG": ("NesterovAG", {}),
    "AdaDelta": ("AdaDelta", {}),
    "AdaGrad": ("AdaGrad", {}),
    "SMORMS3": ("SMORMS3", {}),
    "MSVAG": ("MSVAG", {}),
    "MSVAG with decay": ("MSVAG", {"weight_decay_rate": 0.1, "eta": 0.5}),
    "RMSprop": ("RMSprop", {}),
    "RMSprop with eps inside": ("RMSprop", {"eps_inside_sqrt": True}),
    "RMSpropGraves": ("RMSpropGraves", {}),
    "Adam": ("Adam", {}),
    "AdamW": ("AdamW", {"weight_decay_rate": 0.1, "eta": 0.5}),
    "AMSGrad": ("AMSGrad", {}),
    "AdaBound": ("AdaBound", {"gamma": 0.1}),
    "AMSBound": ("AMSBound", {}),
}
HOOKS = {
    "WeightDecay": {"rate": 0.1},
    "Lasso": {"rate": 0.1},
    "GradientClipping": {"threshold": 2.0},
    "GradientHardClipping": {"lower_bound": -0.5, "upper_bound": 0.3},
    "GradientLARS": {"weight_decay": 0.1},
}


class Framework:
    """The modules of mpchain or Chainer."""

    def __init__(self, name):
        for module in ("link", "optimizers", "optimizer_hooks", "serializers", "variable"):
            setattr(self, module, importlib.import_module(f"{name}.{module}"))

    def model(self, dtype):
        """Returns a link with two parameters, one of which is zero."""
        link = self.link.Link()
        with link.init_scope():
            W = np.random.RandomState(0).randn(30, 7).astype(dtype)
            link.W = self.variable.Parameter(W)
            link.b = self.variable.Parameter(np.zeros(7, dtype))
        return link

    def optimizer(self, case, link):
        """Returns the optimizer of a case after setup."""
        name, arguments = OPTIMIZERS[case]
        return getattr(self.optimizers, name)(**arguments).setup(link)


def take_steps(optimizer, n, seed):
    """Makes updates with gradients of several sizes; half way, the learning rate changes."""
    rng = np.random.RandomState(seed)
    link = optimizer.target
    for i in range(n):
        link.W.grad = (rng.randn(30, 7) + np.arange(7) - 3).astype(link.W.dtype)
        link.b.grad = rng.randn(7).astype(link.b.dtype)
        for name in ("lr", "alpha"):
            if i == n // 2 and optimizer.hyperparam.get_dict().get(name):
                setattr(optimizer.hyperparam, name, 0.5 * getattr(optimizer.hyperparam, name))
        optimizer.update()


def results(framework):
    """Returns parameters after :data:`N_STEPS` steps, by dtype and case."""
    found = {}
    for dtype in ("float32", "float64"):
        for case in OPTIMIZERS:
            link = framework.model(dtype)
            take_steps(framework.optimizer(case, link), N_STEPS, 1)
            found[f"{dtype}/{case}"] = np.concatenate([link.W.array.ravel(), link.b.array])
        for name, arguments in HOOKS.items():
            link = framework.model(dtype)
            optimizer = framework.optimizers.SGD(0.5).setup(link)
            optimizer.add_hook(getattr(framework.optimizer_hooks, name)(**arguments))
            take_steps(optimizer, N_STEPS, 1)
            found[f"{dtype}/{name}"] = np.concatenate([link.W.array.ravel(), link.b.array])
    return found


def save_half_way(framework, folder):
    """Saves the model and optimizer of every case after some steps."""
    for case in OPTIMIZERS:
        link = framework.model("float64")
        optimizer = framework.optimizer(case, link)
        take_steps(optimizer, 5, 2)
        framework.serializers.save_npz(folder / f"{case} model.npz", link)
        framework.serializers.save_npz(folder / f"{case} optimizer.npz", optimizer)


def resume(framework, folder):
    """Loads what :func:`save_half_way` saved, continues, and returns the parameters."""
    found = {}
    for case in OPTIMIZERS:
        link = framework.model("float64")
        optimizer = framework.optimizer(case, link)
        framework.serializers.load_npz(folder / f"{case} model.npz", link)
        framework.serializers.load_npz(folder / f"{case} optimizer.npz", optimizer)
        take_steps(optimizer, 5, 3)
        found[case] = np.concatenate([link.W.array.ravel(), link.b.array])
    return found


def main(name, folder):
    warnings.simplefilter("ignore")
    framework, folder = Framework(name), pathlib.Path(folder)
    np.savez(folder / "results.npz", **results(framework))
    (folder / "theirs").mkdir()
    save_half_way(framework, folder / "theirs")
    for whose in ("ours", "theirs"):
        np.savez(folder / f"resumed from {whose}.npz", **resume(framework, folder / whose))


if __name__ == "__main__":
    main(*sys.argv[1:])
