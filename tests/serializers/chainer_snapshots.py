"""Writes the small files of Chainer 7.8.1 in ``data`` when an interpreter with Chainer runs it:
``python chainer_snapshots.py FOLDER``. Their content is known without reading them."""

import pathlib
import sys

import numpy as np


def make(framework, is_filled):
    """Returns a model, its optimizer, and their arrays by name, which are filled with known numbers
    or with zeros."""
    links = framework.links
    model = framework.Chain()
    with model.init_scope():
        model.l1 = links.Linear(3, 2)
        model.bn = links.BatchNormalization(2)
        model.count = 7 if is_filled else 0
        model.nothing = None if is_filled else 1
    model.register_persistent("count")
    model.register_persistent("nothing")
    optimizer = framework.optimizers.Adam().setup(model)
    with model.init_scope():
        model.lazy = links.Linear(None, 2, nobias=True)
    model.cleargrads()
    for param in model.params():
        if param.update_rule is not None:
            param.grad = np.zeros_like(param.array)
    optimizer.update()  # this update creates the optimizer's arrays
    optimizer.t = 5 if is_filled else 0
    arrays = [("/bn/avg_mean", model.bn.avg_mean)]
    for name, param in sorted(model.namedparams()):
        if param.update_rule is not None:
            param.update_rule.t = 5 if is_filled else 0
            arrays.append((name, param.array))
            arrays += [(name + key, param.update_rule.state[key]) for key in ("m", "v")]
    for i, (_, array) in enumerate(arrays):
        array[...] = i + np.arange(array.size).reshape(array.shape) / 8 if is_filled else 0
    return model, optimizer, dict(arrays)


if __name__ == "__main__":
    import chainer

    folder = pathlib.Path(sys.argv[1])
    for name, item in zip(("model", "optimizer"), make(chainer, True)):
        chainer.serializers.save_npz(str(folder / f"{name}.npz"), item)
        chainer.serializers.save_hdf5(str(folder / f"{name}.h5"), item)
