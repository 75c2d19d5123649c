"""Extreme inputs, no elements, memory not in order, mixed types, rare options."""

import numpy as np

from tests.oracle.function_cases.case import Draw, case, fixed, integers, mask, uniform, values
from tests.oracle.function_cases.connection import recurrent
from tests.oracle.function_cases.loss import LABELS
from tests.oracle.function_cases.normalization import STATS, WHERE

# fmt: off
# Extreme inputs, no elements, memory not in order
EXTREME = values(-10000.0, -100.0, -30.0, 30.0, 100.0, 10000.0)
for name in ("relu", "sigmoid", "hard_sigmoid", "tanh", "elu", "selu", "softplus",
             "leaky_relu", "erf", "erfc", "ndtr", "exp", "logsumexp", "arctan", "cosh", "expm1"):
    case(name, x=EXTREME, loose=10)
for name in ("softmax", "log_softmax"):
    case(name, "x, axis=0", x=EXTREME)
case("swish", "x, beta", x=EXTREME, beta=fixed(()), loose=4)
case("gaussian_nll", "x, m, v, reduce='no'", x=(4,), m=(4,), v=values(-8.0, -5.0, 5.0, 8.0))
case("bernoulli_nll", "x, y, reduce='no'", x=fixed(values(0, 1, 0, 1)), y=values(-80.0, -80.0,
     80.0, 80.0))
for name in ("relu", "softmax", "sum", "exp", "softplus", "flatten", "normalize", "cumsum"):
    case(name, x=(0, 3))
case("convolution_2d", "x, W", x=(0, 2, 5, 5), W=(3, 2, 3, 3))
case("deconvolution_2d", "x, W", x=(0, 2, 5, 5), W=(2, 3, 3, 3))
case("max_pooling_2d", "x, 2", x=(0, 2, 4, 4), wrong="refuses",
     note="it refuses an empty batch")
case("average_pooling_2d", "x, 2", x=(0, 2, 4, 4))
case("softmax_cross_entropy", "x, t", x=(0, 3), t=integers(3, 0),
     wrong="refuses",
     note="no gradient of an empty batch")
case("sigmoid_cross_entropy", "x, t", x=(0, 3), t=integers(2, 0, 3))
case("embed_id", "t, W", t=integers(3, 0), W=(3, 2), wrong="refuses",
     note="it refuses an empty batch")
case("fixed_batch_normalization", "x, g, b, m, v", x=(0, 3), g=(3,), b=(3,), m=(3,), v=uniform(0.5,
     2, 3))
case("relu", "x.T", x=(3, 4))
case("softmax", "x[::2, ::-1]", x=(4, 5))
case("convolution_2d", "F.transpose(x, (3, 2, 1, 0)), W[::-1]", x=(6, 5, 2, 3), W=(3, 2, 3, 2),
     loose=4)
case("max_pooling_2d", "x[:, :, ::-1], 2", x=(2, 2, 4, 4))
case("linear", "x.T, W.T", x=(3, 4), W=(3, 2))
case("batch_normalization", "F.transpose(x), g, b", x=(3, 5), g=uniform(0.5, 2, 3), b=(3,), loose=8)

# float16 beside float32
case("batch_normalization", "x, g, b, running_mean=m, running_var=v", x=(6, 3), g=uniform(0.5, 2,
     3), b=(3,),
     **STATS, mixed="x", loose=8)
case("batch_renormalization", "x, g, b, 3.0, 5.0, 1e-3, m, v", x=(6, 3), g=uniform(0.5, 2, 3),
     b=(3,), **STATS,
     mixed="x", loose=8)
case("group_normalization", "x, 2, g, b", x=(3, 4, 2), g=(4,), b=(4,), mixed="x", loose=8)
case("layer_normalization", "x, g, b", x=(3, 5), g=(5,), b=(5,), mixed="x", loose=8)
case("fixed_batch_renormalization", "x, g, b, m, v", x=(6, 3), g=(3,), b=(3,), m=(3,),
     v=uniform(0.5, 2, 3),
     mixed="x", loose=8)
case("batch_normalization", "x, g, b, eps=1e-3", x=uniform(100, 200, 50, 2), g=(2,), b=(2,),
     loose=50)
case("softmax_cross_entropy", "x, t, class_weight=w", x=(5, 3), t=LABELS,
     w=fixed(uniform(0.5, 2, 3)), mixed="x")
case("dropout", "x, mask=m", x=(3, 4), m=mask(0.5, 3, 4), mixed="x")
case("gaussian", "m, v, eps=e", m=(3, 4), v=(3, 4), e=fixed((3, 4)), mixed="m v")
case("prelu", "x, W", x=(2, 3), W=(3,), mixed="x")
case("concat", "[x, y]", x=(2, 3), y=(2, 3), mixed="x")
case("roi_average_pooling_2d", "x, r.reshape(4, 4), t, 2, 1.0", **WHERE, mixed="x", loose=4)
case("matmul", "x, y", x=(2, 300), y=(300, 2), dtypes=("float16", "float64"))
case("mean", x=(3000,), dtypes=("float16", "float64"))
case("softmax_cross_entropy", "x, t", x=(2000, 3), t=integers(3, 2000), dtypes=("float16",
     "float64"))
case("logsumexp", x=uniform(0, 1, 3000), dtypes=("float16", "float64"))
case("cumsum", x=uniform(0, 1, 3000), dtypes=("float16", "float64"))

# Further options
recurrent("n_step_lstm", 1, 8, ["hx", "cx"], lengths=(2, 2))
recurrent("n_step_bigru", 1, 6, ["hx"], lengths=(1,))
case("connectionist_temporal_classification", "[x0, x1, x2], t, 0", x0=(1, 3), x1=(1, 3), x2=(1,
     3), t=[[1, 1]],
     loose=8)
case("connectionist_temporal_classification", "(x0, x1), t, 2", x0=(2, 3), x1=(2, 3), t=[[1], [0]],
     loose=8)
case("crf1d", "W, [x0], [a]", W=(3, 3), x0=(2, 3), a=[0, 1])
case("argmax_crf1d", "W, [x0]", W=(3, 3), x0=(2, 3), forward_only=True)
case("triplet", "x, y, z, margin=0.5", x=(1, 2), y=(1, 2), z=(1, 2))
case("contrastive", "x, x * 1, t", x=(2, 3), t=[1, 0])
case("hinge", "x, t", x=Draw(lambda random: np.array([[2.0, 0.0, -1.0, 1.0]])), t=[0])
case("huber_loss", "x, t, 1.0", x=(3, 2, 2), t=fixed((3, 2, 2)))
case("squared_error", "x, t", x=(3,), t=fixed((3,)))
case("scale", "x, y, axis=1", x=(2, 3, 4), y=())
case("normalize", x=fixed(Draw(lambda random: np.zeros((2, 3)))), forward_only=True)
case("spatial_transformer_sampler", "x, g", x=(1, 1, 3, 3), g=Draw(
    lambda random: np.array([[[[-1.0, 0.0, 1.0]], [[-1.0, 0.0, 1.0]]]])), forward_only=True)
case("unpooling_2d", "x, (2, 3), (1, 2), (0, 1), (4, 3)", x=(1, 2, 3, 2))
case("upsampling_2d", "x, t, (2, 3), (1, 2), (0, 1)", x=(1, 2, 3, 2), t=integers(6, 1, 2, 3, 2))
case("max_pooling_nd", "x, 2, (1, 2), (0, 1)", x=(1, 2, 3, 4))
case("average_pooling_2d", "x, (2, 3), (1, 2), (0, 1)", x=(1, 2, 3, 4))
case("local_response_normalization", "x, n=4", x=(1, 6))
case("separate", "x, axis=1", x=(2, 1, 3))
case("split_axis", "x, np.array([1, 3]), axis=1", x=(2, 4))
case("permutate", "x, t, 0", x=(3,), t=[1, 2, 0])
case("as_strided", "x, (2, 3), (0, 1)", x=(3,))
