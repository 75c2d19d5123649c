"""Uses hooks of functions and links."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.function_hooks import TimerHook
from chainer.link_hooks import SpectralNormalization

rng = np.random.RandomState(0)
hook = TimerHook()
model = L.Linear(3, 2, initialW=rng.standard_normal((2, 3)).astype("f"))
with hook:
    y = F.relu(model(rng.standard_normal((4, 3)).astype("f")))
    F.sum(y).backward()
names = {name for name in hook.summary()}
assert {"ReLU", "LinearFunction"} <= names, names
assert hook.total_time() > 0 and len(hook.call_history) >= 4

normalized = L.Linear(3, 2, initialW=rng.standard_normal((2, 3)).astype("f"))
normalized.add_hook(SpectralNormalization(n_power_iteration=20))
normalized(np.ones((1, 3), "f"))


class Shapes(chainer.LinkHook):
    name = "shapes"
    seen = []

    def forward_postprocess(self, args):
        self.seen.append((type(args.link).__name__, args.out.shape))


with Shapes() as shapes:
    chainer.Sequential(L.Linear(3, 2), L.Linear(2, 1))(np.ones((1, 3), "f"))
print(len(shapes.seen), np.linalg.norm(normalized.W.data) > 0)
