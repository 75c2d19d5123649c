"""State that belongs to the samples of one rank, such as a recurrent network's hidden state."""

import math
from collections.abc import Sequence

from mpchain.distributed.communicators import Communicator
from mpchain.link import Link
from mpchain.serializer import AbstractSerializer, Deserializer, MissingKeyError
from mpchain.variable import Variable, as_array


class RankStates:
    """Attributes of links that hold one row for each of this rank's samples.

    Args:
        comm: the ranks.

    Attributes:
        n_samples: the number of samples of all ranks in the last step.
    """

    def __init__(self, comm: Communicator):
        self._comm, self._places = comm, {}
        self.n_samples = 0

    def add(self, link: Link, names: Sequence[str], model: Link | None) -> None:
        """Adds attributes of a link of the model.

        Raises:
            AttributeError: the link has no such attribute.
            ValueError: the link is not in the model.
        """
        paths = {} if model is None else {id(part): path for path, part in model.namedlinks()}
        if id(link) not in paths:
            raise ValueError(
                f"MultiNodeOptimizer.add_rank_state: link must be in the optimizer's model, but "
                f"this {type(link).__name__} is not; call setup before"
            )
        for name in names:
            getattr(link, name)
            self._places[f"{paths[id(link)]}/{name}".strip("/")] = link, name

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves this rank's rows, as parts of the whole; restores those of its share."""
        for path, (link, name) in self._places.items():
            if isinstance(serializer, Deserializer):
                self._restore(serializer, path, link, name)
            else:
                self._save(serializer, path, getattr(link, name))

    def _restore(self, serializer, path, link, name):
        try:
            whole = serializer(path, None)
        except MissingKeyError:
            return
        if not serializer.restores:
            return
        if whole is not None:
            self.n_samples = len(whole)
            begin, end = self._comm.share_of(self.n_samples)
            whole = Variable(link.device.send(whole[begin:end].copy()))
        setattr(link, name, whole)

    def _save(self, serializer, path, value):
        begin, end = self._comm.share_of(self.n_samples)
        if value is None or not serializer.takes_parts or self._comm.size == 1:
            serializer(path, value)
            return
        if len(value) != end - begin:
            raise ValueError(
                f"MultiNodeOptimizer.add_rank_state: {path} must have a row for each of this "
                f"rank's {end - begin} samples of the last batch, but has {len(value)}"
            )
        array = as_array(value)
        n_per_row = math.prod(array.shape[1:])
        shape = (self.n_samples, *array.shape[1:])
        serializer.part(path, array.reshape(-1), begin * n_per_row, shape)
