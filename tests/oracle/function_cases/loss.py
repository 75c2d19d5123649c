"""Evaluation, losses and noise."""

import numpy as np

from tests.oracle.function_cases.case import (
    TEST,
    Draw,
    case,
    fixed,
    integers,
    mask,
    uniform,
    values,
)

# fmt: off
# Evaluation
LABELS = [0, 2, 1, -1, 2]
case("accuracy", "y, t", y=(4, 3), t=[0, 2, 1, 2], forward_only=True)
case("accuracy", "y, t, ignore_label=-1", y=(5, 3), t=LABELS, forward_only=True)
case("accuracy", "y, t, ignore_label=0", y=(5, 3, 2), t=integers(3, 5, 2), forward_only=True)
case("accuracy", "y, t, ignore_label=-1", y=(2, 3), t=[-1, -1], forward_only=True)
case("binary_accuracy", "y, t", y=(5,), t=[0, 1, 1, -1, 0], forward_only=True)
case("binary_accuracy", "y, t", y=values(0.0, -1.0, 1.0), t=[0, 1, 1], forward_only=True)
for name in ("classification_summary", "f1_score", "precision", "recall"):
    case(name, "y, t", y=(5, 3), t=LABELS, forward_only=True)
    case(name, "y, t, label_num=4", y=(5, 3), t=LABELS, forward_only=True)
    case(name, "y, t, ignore_label=2", y=(5, 3), t=[0, 2, 1, 1, 2], forward_only=True)
    case(name, "y, t", y=(3, 3), t=[0, 0, 0], forward_only=True)
case("classification_summary", "y, t, beta=2.0", y=(8, 3), t=integers(3, 8), forward_only=True)
case("r2_score", "x, t", x=(5,), t=fixed((5,)), forward_only=True)
case("r2_score", "x, t", x=(5, 2), t=fixed((5, 2)), forward_only=True)
case("r2_score", "x, t, multioutput='raw_values'", x=(5, 2), t=fixed((5, 2)), forward_only=True)
case("r2_score", "x, t", x=fixed((3, 2)), t=fixed(Draw(lambda random: np.ones((3, 2)))),
     forward_only=True)

# Losses
SAMPLER = "lambda shape: (np.arange(np.prod(shape)).reshape(shape) * 2 % 5).astype(np.int32)"
REDUCE = (", reduce='sum'", ", reduce='mean'", ", reduce='no'")
BITS = fixed(Draw(lambda random: random.randint(0, 2, (3, 4)).astype(np.float64)))
for reduce in REDUCE:
    case("bernoulli_nll", f"x, y{reduce}", x=BITS, y=(3, 4))
    case("bernoulli_nll", f"x, y{reduce}", x=uniform(0, 1, 3, 4), y=(3, 4))
    case("gaussian_kl_divergence", f"m, v{reduce}", m=(3, 4), v=(3, 4))
    case("gaussian_nll", f"x, m, v{reduce}", x=(3, 4), m=(3, 4), v=(3, 4))
    case("negative_sampling", f"x, t, W, {SAMPLER}, 2{reduce}".replace("mean", "sum"), x=(3, 4),
         t=[0, -1, 2], W=(5, 4))
for reduce in REDUCE[1:]:
    case("black_out", f"x, t, W, s{reduce}", x=(3, 4), t=[0, 1, 2], W=(6, 4),
         s=[[3, 4], [5, 0], [1, 4]], loose=16)
    for extra in ("", ", margin=2.5"):
        case("contrastive", f"x, y, t{extra}{reduce}", x=(4, 3), y=(4, 3), t=[0, 1, 0, 1])
        case("triplet", f"x, y, z{extra}{reduce}", x=(4, 3), y=(4, 3), z=(4, 3))
    for norm in ("L1", "L2"):
        case("hinge", f"x, t, norm='{norm}'{reduce}", x=(4, 3), t=[0, 2, 1, 2])
    for normalize in (True, False):
        arguments = f"x, t, normalize={normalize}{reduce}"
        case("sigmoid_cross_entropy", arguments, x=(3, 4), t=integers(2, 3, 4, low=-1))
        case("softmax_cross_entropy", arguments, x=(5, 3), t=LABELS)
        case("softmax_cross_entropy", arguments, x=(5, 3, 2), t=integers(3, 5, 2, low=-1))
    case("softmax_cross_entropy", f"x, t, class_weight=w, ignore_label=0{reduce}", x=(5, 3),
         t=[0, 2, 1, 1, 0],
         w=fixed(uniform(0.5, 2, 3)))
    case("softmax_cross_entropy", f"x, t, class_weight=w{reduce}", x=(5, 3), t=LABELS,
         w=fixed(uniform(0.5, 2, 3)))
    case("softmax_cross_entropy", f"x, t, enable_double_backprop=True{reduce}", x=(5, 3), t=LABELS)
    case("softmax_cross_entropy", f"x, t, class_weight=w, enable_double_backprop=True{reduce}",
         x=(5, 3), t=LABELS, w=fixed(uniform(0.5, 2, 3)))
    case("softmax_cross_entropy", f"x, t, cache_score=False{reduce}", x=(5, 3), t=LABELS)
    for soft, wrong, note in (
        ("cross-entropy", "", ""),
        ("kl-divergence", "forward float64", "kl-divergence takes the logarithm of t + 1e-7"),
    ):
        case("softmax_cross_entropy", f"x, F.softmax(t){reduce}, soft_target_loss='{soft}'", x=(4,
             3),
             t=(4, 3), wrong=wrong, note=note)
        case("softmax_cross_entropy", f"x, F.softmax(t).array{reduce}, soft_target_loss='{soft}'",
             x=(4, 3), t=fixed((4, 3)), wrong=wrong, note=note)
case("softmax_cross_entropy", "x, t", x=(2, 3), t=[-1, -1])
case("softmax_cross_entropy", "x, t", x=uniform(-300, 300, 3, 4), t=[0, 1, 2])
case("sigmoid_cross_entropy", "x, t", x=(3,), t=[-1, -1, -1])
case("sigmoid_cross_entropy", "x, t", x=values(-300.0, 300.0, 0.0), t=[0, 0, 1])
for reduce in ("half_squared_sum", "no"):
    case("cross_covariance", f"y, z, reduce='{reduce}'", y=(5, 3), z=(5, 2))
    case("decov", f"x, reduce='{reduce}'", x=(5, 3))
for reduce in ("sum_along_second_axis", "no"):
    case("huber_loss", f"x, t, 1.0, reduce='{reduce}'", x=(4, 3), t=(4, 3))
    case("huber_loss", f"x, t, 0.3, reduce='{reduce}'", x=(4, 3, 2), t=(4, 3, 2))
case("huber_loss", "x, t, 1.0, reduce='no'", x=values(0.0, 1.0, -1.0, 2.0), t=values(0.0, 0.0, 0.0,
     0.0))
case("negative_sampling", f"x, t, W, {SAMPLER}, 3, return_samples=True", x=(3, 4), t=[0, 1, 2],
     W=(5, 4))
CTC = {f"x{i}": (2, 4) for i in range(5)}
XS = "[x0, x1, x2, x3, x4]"
for reduce in REDUCE[1:]:
    case("connectionist_temporal_classification", f"{XS}, t, 0{reduce}", **CTC, t=[[1, 2], [3, 3]],
         loose=8)
    case("connectionist_temporal_classification", f"{XS}, t, 3, m, n{reduce}", **CTC,
         t=[[1, 2, 0], [0, 1, 2]], m=[5, 3], n=[3, 1], loose=8)
    case("crf1d", f"W, [x0, x1, x2], [a, b, c]{reduce}", W=(3, 3), x0=(3, 3), x1=(2, 3), x2=(1, 3),
         a=[0, 1, 2], b=[1, 1], c=[2])
    case("crf1d", f"W, [x0, x1], [a, b]{reduce}", W=(3, 3), x0=(2, 3), x1=(2, 3), a=[0, 1], b=[1,
         2])
case("argmax_crf1d", "W, [x0, x1, x2]", W=(3, 3), x0=(3, 3), x1=(2, 3), x2=(1, 3),
     forward_only=True)
NOT_A_NUMBER = {"wrong": "gradient", "note": "the gradient of norm 2 is nan throughout"}
for norm in (1, 2):
    case("discriminative_margin_based_clustering_loss", f"x, t, 0.1, 1.5, 3, norm={norm}", x=(1, 3,
         4, 4),
         t=integers(3, 1, 4, 4), loose=4, **(NOT_A_NUMBER if norm == 2 else {}))
case("discriminative_margin_based_clustering_loss", "x, t, 0.1, 1.5, 3", x=(2, 3, 4, 4),
     t=integers(3, 2, 4, 4), wrong="refuses",
     note="it fails unless there are 1 or max_embedding_dim images")
case("discriminative_margin_based_clustering_loss", "x, t, 0.5, 3.0, 3, 2, 2.0, 0.5, 0.1", x=(1, 3,
     4, 4),
     t=integers(4, 1, 4, 4), loose=4, **NOT_A_NUMBER)

case("discriminative_margin_based_clustering_loss", "x, t, 0.1, 1.5, 3", x=(3, 3, 4, 4),
     t=integers(2, 3, 4, 4), wrong=("forward", "gradient"),
     note="for several images, the first term is not the mean of the images' terms")
# Noise
case("dropout", "x, mask=m", x=(3, 4), m=mask(0.5, 3, 4))
case("dropout", "x, 0.3, mask=m, return_mask=True", x=(3, 4), m=mask(0.3, 3, 4))
case("dropout", config=TEST, x=(3, 4))
case("dropout", "x, 0.0", x=(3, 4))
case("dropout", "x, 0.3", x=(3, 4))
case("gumbel_softmax", "x, 0.5", x=(3, 4))
case("gumbel_softmax", "x, tau=2.0, axis=2", x=(3, 4, 2))
case("gaussian", "m, v", m=(3, 4), v=(3, 4))
case("zoneout", "h, x, 0.3", h=(3, 4), x=(3, 4))
case("rrelu", x=(3, 4))
case("gaussian", "m, v, eps=e", m=(3, 4), v=(3, 4), e=fixed((3, 4)))
case("gaussian", "m, v, eps=e, return_eps=True", m=(3, 4), v=(3, 4), e=fixed((3, 4)))
DROPCONNECT = "simplified_dropconnect"
case(DROPCONNECT, "x, W, b, mask=m", x=(3, 4), W=(2, 4), b=(2,), m=fixed(mask(0.5, 3, 2, 4)))
case(DROPCONNECT, "x, W, ratio=0.3, mask=m, use_batchwise_mask=False", x=(3, 4), W=(2, 4),
     m=mask(0.3, 2, 4))
case(DROPCONNECT, "x, W, b, mask=m > 0, use_batchwise_mask=True", x=(3, 4), W=(2, 4), b=(2,),
     m=mask(0.5, 3, 2, 4))
case(DROPCONNECT, "x, W, b, train=False", x=(3, 4), W=(2, 4), b=(2,))
case("zoneout", "h, x, 0.3", config=TEST, h=(3, 4), x=(3, 4))
case("zoneout", "h, x, 0.0", h=(3, 4), x=(3, 4))
