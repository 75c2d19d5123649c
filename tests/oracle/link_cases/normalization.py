"""Normalizations."""

from tests.oracle.link_cases.case import case

TEST = {"train": False}
TUNED = "(link.start_finetuning(), [link(v, finetune=True) for v in (x, y)])"
TWICE = "[link(x), link(y)]"
BATCHES = {"x": (5, 3, 2), "y": (5, 3, 2)}

# fmt: off
case("L.BatchNormalization(3)", TWICE, loose=10, **BATCHES)
case("L.BatchNormalization(None, 0.8, 1e-3, axis=(0, 2))", TWICE, loose=10, **BATCHES)
case("L.BatchNormalization(3)", TUNED, loose=10, **BATCHES)
case("L.BatchNormalization((3, 2), use_gamma=False)", x=(5, 3, 2), loose=10)
case("L.BatchNormalization(3, use_beta=False)", x=(5, 3, 2), loose=10)
case("L.BatchNormalization(3, initial_gamma=2, initial_beta=3, initial_avg_mean=4, "
     "initial_avg_var=5)", x=(5, 3, 2), config=TEST)
case("L.BatchRenormalization(3)", TWICE, loose=10, **BATCHES)
case("L.BatchRenormalization(3, 3, 5, 0.8, 1e-3)", TWICE, loose=10, **BATCHES)
case("L.BatchRenormalization((3, 2), 2, 3, use_gamma=False, use_beta=False)", TWICE, loose=10,
     **BATCHES)
case("L.BatchRenormalization(3)", TUNED, loose=10, **BATCHES)
case("L.BatchRenormalization(3, initial_gamma=2, initial_beta=3)", x=(5, 3, 2), config=TEST)
case("L.BatchRenormalization(3, initial_avg_var=5)", x=(5, 3, 2), config=TEST,
     wrong=["y0", "gx", "ggamma", "loaded y0", "initial avg_mean", "initial avg_var",
            "after avg_mean", "after avg_var"],
     note="it takes the variance for the mean")
case("L.DecorrelatedBatchNormalization(4, groups=2)", TWICE, x=(6, 4, 3), y=(6, 4, 3), loose=20)
case("L.DecorrelatedBatchNormalization(32, decay=0.8, eps=1e-3)", TWICE, x=(6, 32), y=(6, 32),
     loose=20)
case("L.DecorrelatedBatchNormalization(4, groups=2)", TUNED, x=(6, 4, 3), y=(6, 4, 3), loose=20)
case("L.DecorrelatedBatchNormalization(4, groups=1)", x=(6, 4, 3), config=TEST)
case("L.GroupNormalization(2, 4)", x=(3, 4, 3), loose=10)
case("L.GroupNormalization(2)", x=(3, 4, 3), loose=10)
case("L.GroupNormalization(4, 4, 1e-3, 2, np.arange(4.0))", x=(3, 4, 3, 2), loose=10)
case("L.LayerNormalization(4)", x=(3, 4), loose=10)
case("L.LayerNormalization()", x=(3, 4), loose=10)
case("L.LayerNormalization(4, 1e-3)", x=(3, 4), loose=10)
