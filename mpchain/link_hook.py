"""Link hooks: objects that are told of each call of a link."""

import dataclasses

from mpchain.configuration import config, global_config


@dataclasses.dataclass(slots=True)
class ForwardPreprocessArgs:
    """What a hook is told before a call.

    Attributes:
        link (Link): the link that is called.
        forward_name (str): the method that will compute: ``'forward'``.
        args (tuple), kwargs (dict): the arguments.
    """

    link: object
    forward_name: str
    args: tuple
    kwargs: dict


@dataclasses.dataclass(slots=True)
class ForwardPostprocessArgs(ForwardPreprocessArgs):
    """What a hook is told after a call.

    Attributes:
        out: what the method returned.
    """

    out: object


class LinkHook:
    """Base of link hooks.

    In a ``with`` block a hook is told of the calls of all links in this thread; one added by
    :meth:`Link.add_hook` is told of the calls of that link only.

    Attributes:
        name (str): under which it is active.
    """

    name = "LinkHook"

    def __enter__(self):
        if self.name in config.link_hooks:
            raise KeyError(f"link hook {self.name!r} is active already")
        self.added(None)
        # A new dictionary, since this one may be that of all threads.
        config.link_hooks = {**config.link_hooks, self.name: self}
        return self

    def __exit__(self, *exc_info):
        hooks = {name: hook for name, hook in config.link_hooks.items() if name != self.name}
        config.link_hooks = hooks
        if hooks == global_config.link_hooks:
            # As before: what is set there later is seen in this thread too.
            del config.link_hooks
        self.deleted(None)

    def added(self, link):
        """Called when the hook becomes active, with the link it was added to or None for all."""

    def deleted(self, link):
        """Called when the hook is no longer active, with the link it was added to or None."""

    def forward_preprocess(self, args):
        """Called before a link computes, with :class:`ForwardPreprocessArgs`."""

    def forward_postprocess(self, args):
        """Called after a link has computed, with :class:`ForwardPostprocessArgs`."""


def call_with_hooks(link, hooks, args, kwargs):
    """Calls ``link.forward`` and tells the hooks before and after."""
    before = ForwardPreprocessArgs(link, "forward", args, kwargs)
    for hook in hooks:
        hook.forward_preprocess(before)
    out = link.forward(*args, **kwargs)
    after = ForwardPostprocessArgs(link, "forward", args, kwargs, out)
    for hook in reversed(hooks):
        hook.forward_postprocess(after)
    return out
