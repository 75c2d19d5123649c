"""Classifies the rows of a table: a first look at models, optimizers and the trainer.

    python train_table.py                      one process
    mpchain-launch -n 2 train_table.py         two ranks, the same numbers

The table comes with scikit-learn: 13 chemical measurements of 178 wines from three growers. Without
scikit-learn, or with --test, the script generates a table.
"""

import argparse
import importlib.util

import numpy as np

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import datasets, iterators, optimizers, serializers, training
from mpchain.distributed import MultiNodeUpdater, create_sharded_iterator
from mpchain.training import extensions
from mpchain.typing import Array


def load_table(made_up: bool) -> tuple[Array, Array]:
    """Returns the rows (N, 13), float32, and their classes (N,), int32."""
    if made_up or importlib.util.find_spec("sklearn") is None:
        labels = np.arange(180, dtype=np.int32) % 3
        centers = np.random.RandomState(0).normal(0, 1, (3, 13))
        rows = centers[labels] + np.random.RandomState(1).normal(0, 0.7, (180, 13))
        return rows.astype(np.float32), labels
    import sklearn.datasets

    rows, labels = sklearn.datasets.load_wine(return_X_y=True)
    return rows.astype(np.float32), labels.astype(np.int32)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epoch", type=int, default=30, help="passes over the training rows")
    parser.add_argument("--batchsize", type=int, default=16, help="rows in a global batch")
    parser.add_argument("--units", type=int, default=32, help="units of the hidden layer")
    parser.add_argument("--gpu", action="store_true", help="compute on GPUs, one for each rank")
    parser.add_argument("--out", default="result", help="folder of the results")
    parser.add_argument("--resume", help="snapshot to resume from")
    parser.add_argument("--test", action="store_true", help="run a few seconds on synthetic data")
    args = parser.parse_args()
    if args.test:
        args.epoch = 3
    return args


def main() -> None:
    args = parse_arguments()
    comm = mpchain.create_communicator()
    device = f"@cupy:{comm.intra_rank}" if args.gpu else "@numpy"
    np.random.seed(0)

    # The features have different units, so they are standardized.
    rows, labels = load_table(args.test)
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    table = datasets.TupleDataset(rows, labels)
    train, test = datasets.split_dataset_random(table, first_size=len(table) * 3 // 4, seed=0)

    # Batches are divided among the ranks.
    train_iter = iterators.SerialIterator(train, args.batchsize)
    test_iter = iterators.SerialIterator(test, args.batchsize, repeat=False, shuffle=False)
    train_iter = create_sharded_iterator(train_iter, comm)
    test_iter = create_sharded_iterator(test_iter, comm)

    # The classifier adds the loss and the accuracy to a network that scores three classes.
    network = mpchain.Sequential(L.Linear(13, args.units), F.relu, L.Linear(args.units, 3))
    model = L.Classifier(network).to_device(device)
    optimizer = mpchain.create_multi_node_optimizer(optimizers.Adam(alpha=0.01), comm).setup(model)
    updater = MultiNodeUpdater(train_iter, optimizer, comm, device=device)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)

    evaluator = extensions.Evaluator(test_iter, model, device=device)
    trainer.extend(mpchain.create_multi_node_evaluator(evaluator, comm))
    columns = ["epoch", "main/loss", "validation/main/loss", "validation/main/accuracy"]
    extensions.standard_reports(trainer, columns, snapshots=(1, "epoch"), arguments=args)
    if args.resume:
        serializers.load_npz(args.resume, trainer)
    trainer.run()

    # The trained model classifies some rows.
    with mpchain.using_config("train", False), mpchain.no_backprop_mode():
        scores = network(model.xp.asarray(rows[::40]))
    if comm.rank == 0:
        print("classes of some rows:", labels[::40].tolist())
        print("predicted:           ", scores.array.argmax(axis=1).tolist())
        serializers.save_npz(f"{args.out}/model.npz", model)


if __name__ == "__main__":
    main()
