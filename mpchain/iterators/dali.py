"""The iterator over the outputs of an NVIDIA DALI pipeline."""

from typing import Any

import numpy as np

from mpchain import annexes
from mpchain.backends import cuda
from mpchain.dataset import Iterator
from mpchain.serializer import AbstractSerializer


class DaliIterator(Iterator):
    """Yields the batches that a DALI pipeline reads and prepares, on the CPU or on a GPU.

    The iterator is experimental: it was tested only with a double of DALI, not on a GPU.

    An example is the tuple of its arrays in the pipeline's outputs: NumPy arrays for outputs on the
    CPU, CuPy arrays for outputs on a GPU. The pipeline chooses the order (``random_shuffle`` of its
    reader). Only the progress of the iterator is saved; a restored pipeline starts from the
    beginning.

    Args:
        pipeline: pipeline with at least one reader; the iterator builds it if necessary.
        repeat: whether to continue after the first epoch.

    Attributes:
        current_position (int): the number of examples of this epoch that have been read.

    Raises:
        RuntimeError: DALI is not installed.
        TypeError: ``pipeline`` is not a Pipeline.
        ValueError: the pipeline has no reader, which defines the length of an epoch.

    Example:
        >>> iterator = mpchain.iterators.DaliIterator(pipeline)  # doctest: +SKIP
        >>> images, labels = mpchain.dataset.concat_examples(next(iterator))  # doctest: +SKIP
    """

    def __init__(self, pipeline: Any, repeat: bool = True):
        if not isinstance(pipeline, _pipeline_class()):
            raise TypeError(
                "DaliIterator: pipeline must be an nvidia.dali.pipeline.Pipeline, "
                f"not {type(pipeline).__name__}"
            )
        pipeline.build()
        sizes = pipeline.epoch_size()
        if not sizes:
            raise ValueError(
                "DaliIterator: pipeline must have a reader, which defines the length of an epoch"
            )
        self.pipeline = pipeline
        self.batch_size = pipeline.max_batch_size
        self._epoch_size = max(sizes.values())
        self._repeat = repeat
        self._restart()

    @property
    def repeat(self) -> bool:
        return self._repeat

    def _restart(self):
        self.current_position = 0
        self.epoch = 0
        self.is_new_epoch = False
        self._previous_epoch_detail = -1.0

    def reset(self) -> None:
        """Returns to the start of the first epoch."""
        self.pipeline.reset()
        self._restart()

    @property
    def epoch_detail(self) -> float:
        return self.epoch + self.current_position / self._epoch_size

    @property
    def previous_epoch_detail(self) -> float | None:
        return None if self._previous_epoch_detail < 0 else self._previous_epoch_detail

    def __next__(self) -> Any:
        if not self._repeat and self.epoch > 0:
            raise StopIteration
        # The outputs are copied, because the pipeline reuses its memory for the next batch.
        examples = list(zip(*[map(_copy, output) for output in self.pipeline.run()]))
        self._previous_epoch_detail = self.epoch_detail
        if not self._repeat:
            examples = examples[: self._epoch_size - self.current_position]
        self.current_position += len(examples)
        n_epochs, position = divmod(self.current_position, self._epoch_size)
        self.is_new_epoch = n_epochs > 0
        self.epoch += n_epochs
        self.current_position = position
        return examples

    def serialize(self, serializer: AbstractSerializer) -> None:
        for name in ("current_position", "epoch", "is_new_epoch", "_previous_epoch_detail"):
            setattr(self, name, serializer(name.lstrip("_"), getattr(self, name)))


def _copy(tensor):
    """Returns an array with the content of a DALI tensor, on its device."""
    if hasattr(tensor, "__cuda_array_interface__"):
        return cuda.cupy.array(tensor)
    return np.array(tensor)


def _pipeline_class():
    message = "DaliIterator: NVIDIA DALI is needed ({error}): pip install nvidia-dali-cuda130 "
    message += "(the number is CUDA's version)"
    return annexes.library("nvidia.dali.pipeline", message).Pipeline
