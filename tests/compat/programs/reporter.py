"""Uses reports, summaries and scopes."""

import chainer
import numpy as np
from chainer import reporter
from chainer.reporter import DictSummary, Reporter, Summary, report, report_scope

model = chainer.Chain(l=chainer.links.Linear(2, 2))
here = Reporter()
here.add_observer("model", model)
here.add_observers("model", model.namedlinks(skipself=True))
observation = {}
with here.scope(observation):
    report({"loss": 2.5}, model)
    report({"norm": 1.5}, model.l)
    report({"free": 0.5})
inner = {}
with here, report_scope(inner):
    reporter.report({"a": 1}, model)
summary, many = Summary(), DictSummary()
for value in (1.0, 2.0, 6.0):
    summary.add(np.array(value))
    many.add({"v": value, "array": np.array(value)})
print(
    *sorted(observation),
    observation["model/l/norm"],
    *inner,
    *summary.make_statistics(),
    many.compute_mean()["v"],
)
