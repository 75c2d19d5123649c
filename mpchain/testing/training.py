"""A trainer with a mock updater."""

import unittest.mock
from collections.abc import Sequence
from typing import Any

from mpchain.training import Trainer


def get_trainer_with_mock_updater(
    stop_trigger: Any = (10, "iteration"),
    iter_per_epoch: int = 10,
    extensions: Sequence | None = None,
) -> Trainer:
    """Returns a Trainer whose updater is a mock that counts iterations and epochs.

    Args:
        stop_trigger, extensions: arguments of the Trainer.
        iter_per_epoch: number of iterations in an epoch.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater((20, "iteration"), iter_per_epoch=5)
        >>> trainer.updater.update()
        >>> trainer.updater.iteration, trainer.updater.epoch_detail
        (1, 0.2)
    """
    updater = unittest.mock.MagicMock()
    updater.get_all_optimizers.return_value = {}
    updater.agree_on_signal.side_effect = lambda number: number
    updater.rank_times.return_value = None

    def count(iteration):
        updater.iteration = iteration
        updater.previous_epoch_detail = max(iteration - 1, 0) / iter_per_epoch
        updater.epoch_detail = iteration / iter_per_epoch
        updater.epoch = iteration // iter_per_epoch
        updater.is_new_epoch = iteration > 0 and iteration % iter_per_epoch == 0

    count(0)
    updater.update.side_effect = lambda: count(updater.iteration + 1)
    return Trainer(updater, stop_trigger, extensions=extensions)
