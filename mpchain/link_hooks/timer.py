"""The link hook that measures the time of links."""

from mpchain.backends.cpu import CpuDevice
from mpchain.function_hooks.report import Stopwatch
from mpchain.link_hook import ForwardPostprocessArgs, ForwardPreprocessArgs, LinkHook


class TimerHook(Stopwatch, LinkHook):
    """Measures the time of each forward call of links.

    The time of a link includes the time of the links that it calls.

        >>> from mpchain import link_hooks
        >>> with link_hooks.TimerHook() as hook:
        ...     y = L.Linear(3, 2)(np.ones((5, 3), np.float32))
        >>> [name for name, seconds in hook.call_history]
        ['Linear']

    Attributes:
        call_history: list of (name of the link's class, seconds).
    """

    name = "TimerHook"
    name_title = "LinkName"

    def forward_preprocess(self, args: ForwardPreprocessArgs) -> None:
        self.start(id(args.link), not isinstance(args.link.device, CpuDevice))

    def forward_postprocess(self, args: ForwardPostprocessArgs) -> None:
        self.stop(id(args.link), type(args.link).__name__)
