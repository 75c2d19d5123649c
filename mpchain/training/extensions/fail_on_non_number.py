"""The extension that ends training when a parameter is NaN or infinite."""

from mpchain.training.extension import Extension
from mpchain.training.trainer import Trainer


class FailOnNonNumber(Extension):
    """Raises RuntimeError as soon as a parameter of any optimizer's target is NaN or infinite.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater()
        >>> trainer.extend(FailOnNonNumber())
    """

    def __call__(self, trainer: Trainer) -> None:
        """Checks the parameters of all optimizers."""
        for name, optimizer in trainer.updater.get_all_optimizers().items():
            for path, param in optimizer.target.namedparams(include_uninit=False):
                if not param.xp.isfinite(param.array).all():
                    raise RuntimeError(
                        f"FailOnNonNumber: parameter {path} of optimizer {name!r} has an element "
                        f"that is NaN or infinite after iteration {trainer.updater.iteration}"
                    )
