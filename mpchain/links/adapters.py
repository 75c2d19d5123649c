"""Adapters, which add a few trainable parameters to a frozen layer."""

from collections.abc import Callable
from typing import Any

from mpchain import functions as F
from mpchain.initializers import HeUniform, get_initializer
from mpchain.link import Chain, ChainList, Link
from mpchain.links.connection import Linear
from mpchain.links.noise import Dropout
from mpchain.links.parameters import check_sizes
from mpchain.typing import InitialValue, Input
from mpchain.variable import Parameter, Variable


class LoRA(Chain):
    """Low-rank adapter of a :class:`Linear`: y = x W^T + b + (alpha / rank) x A^T B^T.

    A and B are trained; W and b are frozen unless ``train_base`` is True. B is initially zero, so
    that the adapter has no effect at first.

        >>> model = mpchain.Sequential(L.Linear(8, 16), F.relu, L.Linear(16, 4))
        >>> adapters = L.LoRA.insert(model, rank=2)  # then set an optimizer up and train
        >>> list(adapters)
        ['/0', '/1']
        >>> L.LoRA.merge_all(model)  # plain Linear links again

    Args:
        base: the layer, which becomes a child of the adapter.
        rank: the rank of the update of the weights.
        alpha: scale of the update; None means ``rank``.
        dropout_ratio: dropout ratio of the adapter's input in training.
        train_base: whether to train W and b too.
        initialA: initializer, number or array (rank, in_size); None means HeUniform.

    Attributes:
        base (Linear): the layer.
        A (Parameter): (rank, in_size).
        B (Parameter): (out_size, rank), zeros at first.
        is_merged (bool): whether the weights of ``base`` contain the update, persistent.

    Raises:
        TypeError: ``base`` is not a Linear; its subclasses are refused, too.

    See E. J. Hu et al., LoRA: low-rank adaptation of large language models, ICLR 2022.
    """

    _printable = ("rank", "alpha", "train_base", "is_merged")

    def __init__(
        self,
        base: Linear,
        rank: int,
        alpha: float | None = None,
        dropout_ratio: float = 0.0,
        train_base: bool = False,
        initialA: InitialValue = None,
    ) -> None:
        super().__init__()
        if type(base) is not Linear:
            raise TypeError(f"LoRA: base must be a Linear, not {type(base).__name__}")
        check_sizes(self, rank=rank)
        self.rank = rank
        self.alpha = rank if alpha is None else alpha
        self.train_base = train_base
        self.dropout = Dropout(dropout_ratio)
        self.add_persistent("is_merged", False)
        with self.init_scope():
            self.base = base
            self.A = Parameter(HeUniform() if initialA is None else get_initializer(initialA))
            self.B = Parameter(get_initializer(0), (base.out_size, rank))
        self.to_device(base.device)
        self._initialize()

    def _initialize(self):
        if self.base.W.is_initialized and not self.A.is_initialized:
            self.A.initialize((self.rank, self.base.W.shape[1]))

    def forward(self, x: Input, n_batch_axes: int | None = None) -> Variable:
        """Applies the layer and its adapter to x (N, ...), see :class:`Linear`; returns a Variable
        (N, out_size)."""
        n_batch_axes = self.base.n_batch_axes if n_batch_axes is None else n_batch_axes
        self.base.initialize_for(x, n_batch_axes)
        self._initialize()
        W, b = self.base.W, self.base.b
        if not self.train_base:
            # Frozen parameters are also disabled, because weight decay changes parameters without
            # gradients.
            self.base.disable_update()
            W, b = W.array, None if b is None else b.array
        y = F.linear(x, W, b, n_batch_axes)
        if self.is_merged:
            return y
        inner = F.linear(self.dropout(x), self.A, None, n_batch_axes)
        return y + F.linear(inner, self.B, None, n_batch_axes) * (self.alpha / self.rank)

    def _change(self):
        """Returns the update of the weights: (alpha / rank) B A."""
        with self.device.create_context():
            change = self.B.array @ self.A.array
            return change * change.dtype.type(self.alpha / self.rank)

    def merge(self) -> None:
        """Adds the update to the weights of ``base``, so that calls take no extra time."""
        if not self.is_merged:
            self.base.W.array += self._change()
            self.is_merged = True

    def unmerge(self) -> None:
        """Subtracts the update from the weights of ``base``, which restores the weights up to
        rounding."""
        if self.is_merged:
            self.base.W.array -= self._change()
            self.is_merged = False

    @classmethod
    def insert(
        cls,
        model: Link,
        rank: int,
        alpha: float | None = None,
        where: Callable[[str, Link], bool] | None = None,
        **options: Any,
    ) -> dict[str, "LoRA"]:
        """Replaces the Linear links below a model by adapters.

        All other parameters of the model are still trained; :meth:`Link.disable_update` freezes
        them.

        Args:
            model: the model, a Chain or ChainList.
            rank, alpha, options: arguments of the class.
            where: function of the path and the link that returns whether to replace the link; None
                replaces all Linear links.

        Returns:
            dict from the path of each replaced link to its LoRA.

        Raises:
            ValueError: no link below the model is replaced.
        """
        found = {
            path: link
            for path, (parent, link) in _below(model).items()
            if type(link) is Linear and not isinstance(parent, cls)
        }
        found = {path: link for path, link in found.items() if where is None or where(path, link)}
        if not found:
            raise ValueError(
                f"LoRA.insert: {type(model).__name__} contains no Linear link to replace"
            )
        made: dict[Link, LoRA] = {
            link: cls(link, rank, alpha, **options) for link in found.values()
        }
        adapters: dict[str, LoRA] = {path: made[link] for path, link in found.items()}
        _replace(model, adapters)
        return adapters

    @classmethod
    def merge_all(cls, model: Link) -> None:
        """Merges all adapters below a model, and replaces them with their Linear links."""
        found = {path: x for path, (_, x) in _below(model).items() if isinstance(x, cls)}
        for adapter in found.values():
            adapter.merge()
            adapter.base.enable_update()
        _replace(model, {path: adapter.base for path, adapter in found.items()})


def _below(model):
    """Returns a dict from the path of each link below a model to the link's parent and the link."""
    links = dict(model.namedlinks())
    parents = {path: links[path.rpartition("/")[0] or "/"] for path in links if path != "/"}
    return {path: (parent, links[path]) for path, parent in parents.items()}


def _replace(model, new):
    """Replaces links below a model; ``new`` maps paths to new links."""
    for path, (parent, old) in _below(model).items():
        if path in new and isinstance(parent, ChainList):
            places = [i for i, layer in enumerate(parent) if layer is old]
            parent[places[0]] = new[path]
        elif path in new:
            setattr(parent, path.rpartition("/")[2], new[path])
