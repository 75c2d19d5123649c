"""Link hooks: objects that are called before and after each call of a link."""

import dataclasses
from typing import Any, Self

from mpchain.configuration import add_hook, config, remove_hook
from mpchain.parameter_tree import ParameterTree


@dataclasses.dataclass(slots=True)
class ForwardPreprocessArgs:
    """Arguments of :meth:`LinkHook.forward_preprocess`.

        >>> ForwardPreprocessArgs(L.Linear(3, 2), "forward", (1.0,), {}).args
        (1.0,)

    Attributes:
        link (Link): the link.
        forward_name (str): the name of the link's method, ``'forward'``.
        args (tuple), kwargs (dict): the arguments of the call.
    """

    link: ParameterTree
    forward_name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclasses.dataclass(slots=True)
class ForwardPostprocessArgs(ForwardPreprocessArgs):
    """Arguments of :meth:`LinkHook.forward_postprocess`.

        >>> ForwardPostprocessArgs(L.Linear(3, 2), "forward", (1.0,), {}, 2.0).out
        2.0

    Attributes:
        out: the result of the call.
    """

    out: Any


class LinkHook:
    """Base of link hooks.

    In a ``with`` block, a hook is called for all links in this thread; a hook added by
    :meth:`Link.add_hook` is called for that link only.

        >>> class PrintShape(mpchain.LinkHook):
        ...     name = "PrintShape"
        ...     def forward_postprocess(self, args):
        ...         print(type(args.link).__name__, args.out.shape)
        >>> with PrintShape():
        ...     _ = L.Linear(3, 2)(np.ones((5, 3), np.float32))
        Linear (5, 2)

    Attributes:
        name (str): the name of the hook; two hooks of the same name cannot be active at the same
            time in ``with`` blocks of a thread. :meth:`Link.add_hook` may give it another name.
    """

    name = "LinkHook"

    def __enter__(self) -> Self:
        if self.name in config.link_hooks:
            raise KeyError(
                f"link hook {self.name!r} is active already in this thread: leave its 'with' block "
                "first, or give the new hook another name"
            )
        self.added(None)
        add_hook("link_hooks", self.name, self)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        remove_hook("link_hooks", self.name)
        self.deleted(None)

    def added(self, link: ParameterTree | None) -> None:
        """Called when the hook becomes active; ``link`` is None in a ``with`` block."""

    def deleted(self, link: ParameterTree | None) -> None:
        """Called when the hook is removed; ``link`` is None in a ``with`` block."""

    def forward_preprocess(self, args: ForwardPreprocessArgs) -> None:
        """Called before a link computes, with :class:`ForwardPreprocessArgs`."""

    def forward_postprocess(self, args: ForwardPostprocessArgs) -> None:
        """Called after a link has computed, with :class:`ForwardPostprocessArgs`."""


def call_with_hooks(
    link: ParameterTree, hooks: list[LinkHook], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Calls ``link.forward``, and the hooks before and after it.

    >>> call_with_hooks(L.Linear(3, 2), [], (np.ones((5, 3), np.float32),), {}).shape
    (5, 2)
    """
    before = ForwardPreprocessArgs(link, "forward", args, kwargs)
    for hook in hooks:
        hook.forward_preprocess(before)
    out = link.forward(*args, **kwargs)
    after = ForwardPostprocessArgs(link, "forward", args, kwargs, out)
    for hook in reversed(hooks):
        hook.forward_postprocess(after)
    return out
