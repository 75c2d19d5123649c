"""The base of link hooks that reparameterize the weight of a link."""

from typing import Self

from mpchain.configuration import no_backprop_mode, using_config
from mpchain.link import Link
from mpchain.link_hook import ForwardPostprocessArgs, ForwardPreprocessArgs, LinkHook
from mpchain.variable import Parameter, Variable


class WeightHook(LinkHook):
    """Base of hooks that replace the weight of a link during calls. The parameter itself does not
    change.

    Gradients reach the parameter through :meth:`replacement`. Add a hook with
    :meth:`Link.add_hook`; one hook can serve several links.

        >>> class Doubled(WeightHook):
        ...     name = "Doubled"
        ...     def replacement(self, link, weight):
        ...         return weight * 2
        >>> layer = L.Linear(3, 1, initialW=1).add_hook(Doubled())
        >>> layer(np.ones((1, 3), np.float32)).array
        array([[6.]], dtype=float32)

    Args:
        weight_name: the link's attribute that holds the weight.
        name: name of the hook; None means the attribute ``name`` of its class.
    """

    def __init__(self, weight_name: str = "W", name: str | None = None) -> None:
        self.weight_name = weight_name
        if name is not None:
            self.name = name
        self._replaced = {}  # this maps the id of a link to the weight and its replacement

    def __enter__(self) -> Self:
        raise NotImplementedError(
            f"{type(self).__name__} cannot be used in a with statement: "
            "add it to a link by add_hook"
        )

    def replacement(self, link: Link, weight: Parameter) -> Variable:
        """Returns the Variable to use instead of the weight."""
        raise NotImplementedError(f"{type(self).__name__} does not implement replacement")

    def added(self, link: Link) -> None:
        if not hasattr(link, self.weight_name):
            raise ValueError(
                f"{type(self).__name__}: weight {self.weight_name!r} does not exist in "
                f"{type(link).__name__}"
            )

    def forward_preprocess(self, args: ForwardPreprocessArgs) -> None:
        link = args.link
        weight = getattr(link, self.weight_name)
        before, leftover = self._replaced.pop(id(link), (None, None))
        if weight is leftover:
            # If the previous call of the link raised an error, the weight was not restored.
            weight = before
            setattr(link, self.weight_name, weight)
        if weight.array is None:
            # This call makes the link initialize the weight for the shape of the input.
            with no_backprop_mode(), using_config("in_recomputing", True):
                getattr(link, args.forward_name)(*args.args, **args.kwargs)
        replacement = self.replacement(link, weight)
        # Links read ``is_initialized`` of their parameters, so the replacement needs it too.
        vars(replacement)["is_initialized"] = True
        self._replaced[id(link)] = weight, replacement
        setattr(link, self.weight_name, replacement)

    def forward_postprocess(self, args: ForwardPostprocessArgs) -> None:
        weight, _ = self._replaced.pop(id(args.link))
        setattr(args.link, self.weight_name, weight)
