"""Extensions that send the entries of a log report to Weights & Biases or MLflow."""

import argparse
import importlib.util
import numbers
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from mpchain.serializer import AbstractSerializer
from mpchain.training.extensions.closing_report import as_dict
from mpchain.training.extensions.hyperparameters import Hyperparameters
from mpchain.training.extensions.log_followers import LogFollower
from mpchain.training.extensions.log_report import LogReport
from mpchain.training.states import serialize_optional
from mpchain.training.trainer import Trainer


class ExperimentTracker(LogFollower):
    """Base of extensions that send numbers to a service, which gives each run an id.

    A run begins with the first entry. A resumed training continues the run of its snapshot. In a
    test of the trainer (``test=True``) no entry is sent.

    Args:
        library: name of the library, which must be installed.
        config: hyperparameters of the run; None means the hyperparameters of the trainer's
            :class:`Hyperparameters`.
        log_report: see :class:`LogFollower`.

    Raises:
        RuntimeError: the library is not installed.

    Example:
        >>> class Printed(ExperimentTracker):
        ...     def open(self, run_id):
        ...         print("begins with", self.config)
        ...         return "run 1"
        ...     def send(self, values, iteration):
        ...         print(iteration, sorted(values))
        >>> trainer = testing.get_trainer_with_mock_updater((1, "epoch"))
        >>> trainer.extend(extensions.LogReport())
        >>> trainer.extend(Printed("numpy", {"lr": 0.1}))
        >>> trainer.run()
        begins with {'lr': 0.1}
        10 ['elapsed_time', 'epoch']
    """

    is_report = True

    def __init__(
        self,
        library: str,
        config: argparse.Namespace | Mapping[str, Any] | None = None,
        log_report: str | LogReport = "LogReport",
    ) -> None:
        super().__init__(log_report)
        spec = importlib.util.find_spec(library)
        # A spec without a file belongs to a folder of the same name, in which the library keeps its
        # data.
        if spec is None or not spec.has_location:
            raise RuntimeError(
                f"{type(self).__name__}: {library} is not installed; pip install {library}"
            )
        self.config = as_dict(config)
        self._run_id = ""
        self._is_open = self._is_test = False
        self._error: BaseException | None = None
        self._out = ""

    def initialize(self, trainer: Trainer) -> None:
        """Finds the hyperparameters of the trainer, if none were passed."""
        super().initialize(trainer)
        self._is_test, self._out = trainer.is_test, str(trainer.out)
        for extension in trainer.extensions.values():
            if isinstance(extension, Hyperparameters) and not self.config:
                self.config = extension.values

    def write(self, entries: list[dict[str, Any]]) -> None:
        """Sends the numbers in entries; opens the run before the first entry."""
        if self._is_test:
            return
        if not self._is_open:
            self._run_id, self._is_open = self.open(self._run_id), True
        for entry in entries:
            values = {k: v for k, v in entry.items() if isinstance(v, numbers.Real)}
            self.send(values, int(values.pop("iteration")))

    def open(self, run_id: str) -> str:
        """Begins a run, or continues the run ``run_id`` if it is not empty; returns the run's
        id."""
        raise NotImplementedError(f"{type(self).__name__} does not implement open")

    def send(self, values: dict[str, float], iteration: int) -> None:
        """Sends the numbers of an entry."""
        raise NotImplementedError(f"{type(self).__name__} does not implement send")

    def close(self, error: BaseException | None) -> None:
        """Ends the run.

        Args:
            error: the exception that has ended training, or None.
        """

    def on_error(self, trainer: Trainer, exc: BaseException, tb: TracebackType | None) -> None:
        """Stores the exception that has ended training."""
        self._error = exc

    def finalize(self) -> None:
        """Sends the entries that were logged after the last call, and ends the run."""
        super().finalize()
        if self._is_open:
            self._is_open = False
            self.close(self._error)

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the id of the run, and the number of entries that were sent."""
        super().serialize(serializer)
        self._run_id = str(serialize_optional(serializer, "_run_id", self._run_id))
        self._n_written = serialize_optional(serializer, "_n_written", self._n_written)


class WandbReport(ExperimentTracker):
    """Sends the numbers in the entries of a :class:`LogReport` to Weights & Biases.

    The extension needs wandb (``pip install wandb``), whose environment variables apply: with
    ``WANDB_MODE=offline`` the run is only written to the trainer's folder. If the program has
    begun a run itself (``wandb.init``), the extension uses this run and leaves it open.

    Args:
        project: name of the project; None means wandb's default.
        config: hyperparameters of the run; None means the hyperparameters of the trainer's
            :class:`Hyperparameters`.
        log_report: see :class:`LogFollower`.
        options: further arguments of ``wandb.init``, such as ``name`` and ``tags``.

    Raises:
        RuntimeError: wandb is not installed.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater()
        >>> extensions.standard_reports(trainer, arguments={"lr": 0.1})
        >>> trainer.extend(WandbReport("digits"))  # doctest: +SKIP
    """

    def __init__(
        self,
        project: str | None = None,
        config: argparse.Namespace | Mapping[str, Any] | None = None,
        log_report: str | LogReport = "LogReport",
        **options: Any,
    ) -> None:
        super().__init__("wandb", config, log_report)
        self._options = {"project": project, **options}
        self._run: Any = None
        self._is_own = True

    def open(self, run_id: str) -> str:
        """Begins or continues a run; returns the run's id."""
        import wandb

        self._run, self._is_own = wandb.run, wandb.run is None
        if self._is_own:
            place = {"dir": self._out, "id": run_id or None, "resume": "allow" if run_id else None}
            self._run = wandb.init(**place | {"config": self.config} | self._options)
        return self._run.id

    def send(self, values: dict[str, float], iteration: int) -> None:
        """Sends the numbers of an entry; the iteration is the horizontal axis."""
        self._run.log(values, step=iteration)

    def close(self, error: BaseException | None) -> None:
        """Ends the run, and marks it as failed if there is an error."""
        if self._is_own:
            self._run.finish(exit_code=0 if error is None else 1)


class MlflowReport(ExperimentTracker):
    """Sends the numbers in the entries of a :class:`LogReport` to MLflow.

    The extension needs MLflow (``pip install mlflow-skinny`` or ``mlflow``), whose environment
    variables apply, such as ``MLFLOW_TRACKING_URI``. If the program has begun a run itself
    (``mlflow.start_run``), the extension uses this run and leaves it open.

    Args:
        experiment: name of the experiment; None means MLflow's default.
        config: hyperparameters of the run; None means the hyperparameters of the trainer's
            :class:`Hyperparameters`.
        log_report: see :class:`LogFollower`.
        options: further arguments of ``mlflow.start_run``, such as ``run_name`` and ``tags``.

    Raises:
        RuntimeError: MLflow is not installed.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater()
        >>> extensions.standard_reports(trainer, arguments={"lr": 0.1})
        >>> trainer.extend(MlflowReport("digits"))  # doctest: +SKIP
    """

    def __init__(
        self,
        experiment: str | None = None,
        config: argparse.Namespace | Mapping[str, Any] | None = None,
        log_report: str | LogReport = "LogReport",
        **options: Any,
    ) -> None:
        super().__init__("mlflow", config, log_report)
        self._experiment, self._options = experiment, options
        self._is_own = True

    def open(self, run_id: str) -> str:
        """Begins or continues a run; returns the run's id."""
        import mlflow

        run = mlflow.active_run()
        self._is_own = run is None
        if run is None:
            if self._experiment is not None:
                mlflow.set_experiment(self._experiment)
            run = mlflow.start_run(run_id=run_id or None, **self._options)
        if self.config and not run_id:
            mlflow.log_params(self.config)
        return run.info.run_id

    def send(self, values: dict[str, float], iteration: int) -> None:
        """Sends the numbers of an entry; the iteration is the step."""
        import mlflow

        mlflow.log_metrics(values, step=iteration)

    def close(self, error: BaseException | None) -> None:
        """Ends the run, and marks it as killed after Ctrl-C or SIGTERM, or as failed after another
        error."""
        import mlflow

        is_killed = isinstance(error, (KeyboardInterrupt, SystemExit))
        status = "FINISHED" if error is None else "KILLED" if is_killed else "FAILED"
        if self._is_own:
            mlflow.end_run(status)
