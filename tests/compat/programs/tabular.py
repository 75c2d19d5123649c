"""Uses tabular datasets."""

import numpy as np
from chainer.dataset.tabular import from_data

data = from_data({"a": np.arange(4), "b": [10, 11, 12, 13]})
half = data.slice[[True, False, True, False], ("b",)]
rows = data.astuple()
sums = data.transform(("s",), lambda a, b: (a + b,))
both = data.concat(data)
columns = both.astuple().fetch()
print(
    len(half),
    sum(half.fetch()["b"]),
    *rows[1],
    data.asdict()[2]["b"],
    *sums.astuple()[3],
    len(both),
    sum(columns[1]),
)
