"""Losses with parameters."""

from tests.oracle.link_cases.case import case

FIELDS = {"a": (3, 3), "b": (2, 3), "s": [0, 1, 2], "t": [1, 2]}
SEQUENCES = {"a": (2, 3), "b": (1, 3), "c": (3, 3), "s": [0, 1], "t": [1], "u": [1, 2, 0]}
NO_GRADIENT = "it gives gradients of the maximum, which is no loss"

# fmt: off
case("L.BinaryHierarchicalSoftmax(3, ((3, 1), (2, 0)))", x=(4, 3), t=[0, 1, 2, 3])
case("L.BinaryHierarchicalSoftmax(3, L.BinaryHierarchicalSoftmax.create_huffman_tree("
     "{0: 8, 1: 5, 2: 6, 3: 4, 6: 2, 5: 1}))", x=(6, 3), t=[0, 1, 2, 3, 6, 5])
case("L.BlackOut(3, [5, 3, 2, 1], 2)",
     "(setattr(link, 'sample_data', samples), link(x, t))", x=(2, 3), t=[0, 3],
     samples=[[1, 2], [3, 0]], wrong=["initial W"], note="its initial values are NaN")
case("L.NegativeSampling(3, [5, 3, 2, 1], 4)",
     "(setattr(link.sampler, 'sample', lambda shape: np.arange(10).reshape(shape) % 4), "
     "link(x, t))", x=(2, 3), t=[0, 3])
case("L.NegativeSampling(3, [5, 3], 2, 1.0)",
     "(setattr(link.sampler, 'sample', lambda shape: np.arange(9).reshape(shape) % 2), "
     "link(x, t, 'no', return_samples=True))", x=(3, 3), t=[0, 1, 1])
case("L.CRF1d(3)", "link([a, b], [s, t])", **FIELDS)
case("L.CRF1d(3, 0.5)", "link([a, b], [s, t], 'no')", **FIELDS)
case("L.CRF1d(3, np.arange(9.0).reshape(3, 3))", "link.argmax([a, b])", **FIELDS,
     wrong=["ga", "gb", "gcost"], note=NO_GRADIENT)
case("L.CRF1d(3)", "link([a, b, c], [s, t, u], transpose=True)", **SEQUENCES)
case("L.CRF1d(3)", "link([a, b, c], [s, t, u], 'no', True)", **SEQUENCES)
case("L.CRF1d(3)", "link.argmax([a, b, c], transpose=True)", **SEQUENCES,
     wrong=["ga", "gb", "gc", "gcost"], note=NO_GRADIENT)
