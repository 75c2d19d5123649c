"""Normalization and pooling."""

from tests.oracle.function_cases.case import case, fixed, integers, uniform, values

# fmt: off
# Normalization
BN = {"x": (4, 3, 2, 2), "g": uniform(0.5, 2, 3), "b": (3,)}
STATS = {"m": fixed((3,)), "v": fixed(uniform(0.5, 2, 3))}
case("batch_normalization", "x, g, b", **BN, mixed="x", loose=8)
case("batch_normalization", "x, g, b, running_mean=m, running_var=v", **BN, **STATS, loose=8)
case("batch_normalization", "x, g, b, eps=0.1, running_mean=m, running_var=v, decay=0.3", **BN,
     **STATS, loose=8)
case("batch_normalization", "x, g, b, axis=(0, 2)", x=(4, 3, 2), g=(3,), b=(3,), loose=8)
case("batch_normalization", "x, g, b, axis=0", x=(4, 3, 2), g=(3, 2), b=(3, 2), loose=8)
case("batch_normalization", "x, g, b, axis=(0, 1)", x=(4, 3, 2), g=(2,), b=(2,), loose=8)
case("batch_normalization", "x, g, b", x=(4, 3, 2), g=(3, 2), b=(3, 2), loose=8)
case("batch_normalization", "x, g, b", x=(5, 3), g=(3,), b=(3,), loose=8)
case("fixed_batch_normalization", "x, g, b, m, v", **BN, m=(3,), v=uniform(0.5, 2, 3), mixed="x",
     loose=4)
case("fixed_batch_normalization", "x, g, b, m, v, eps=0.1, axis=(0, 1)", x=(4, 3, 2), g=(2,),
     b=(2,), m=(2,),
     v=uniform(0.5, 2, 2), loose=4)
case("fixed_batch_renormalization", "x, g, b, m, v", **BN, m=(3,), v=uniform(0.5, 2, 3), loose=4)
for limits in ("3.0, 5.0", "1.1, 0.1", "1.0, 0.0"):
    case("batch_renormalization", f"x, g, b, {limits}, running_mean=m, running_var=v", **BN,
         **STATS, loose=8)
    case("batch_renormalization", f"x, g, b, {limits}, 1e-3, m, v, 0.3, update_statistics=True",
         **BN, **STATS,
         loose=8)
DECORRELATED = "decorrelated_batch_normalization"
PROJECTION = {"m": fixed((2, 3)), "p": fixed((2, 3, 3))}
case(DECORRELATED, "x, groups=1", x=(16, 4), loose=30)
case(DECORRELATED, "x, groups=2, eps=0.1", x=(5, 6, 3, 2), loose=30)
case(DECORRELATED, "x, groups=2, running_mean=m, running_projection=p, decay=0.3", x=(16, 6, 2),
     **PROJECTION,
     loose=30)
case("fixed_decorrelated_batch_normalization", "x, m, p, groups=2", x=(5, 6, 2), **PROJECTION,
     loose=4)
case("fixed_decorrelated_batch_normalization", "x, m, p, groups=2", x=(5, 6, 2), m=(2, 3), p=(2, 3,
     3),
     wrong="refuses",
     note="it raises where the gradients of mean and projection are wanted")
case("group_normalization", "x, 2, g, b", x=(3, 4, 2, 2), g=(4,), b=(4,), loose=8)
case("group_normalization", "x, 4, g, b, eps=0.1", x=(3, 4, 5), g=(4,), b=(4,), loose=8)
case("group_normalization", "x, 1, g, b", x=(3, 4), g=(4,), b=(4,), loose=8)
case("layer_normalization", "x, g, b", x=(3, 5), g=(5,), b=(5,), loose=8)
case("layer_normalization", "x, g, b, eps=0.1", x=(3, 5), g=(5,), b=(5,), loose=8)
case("local_response_normalization", x=(2, 7, 3, 2))
case("local_response_normalization", "x, n=3, k=1, alpha=0.5, beta=0.6", x=(2, 7, 3, 2), loose=4)
case("normalize", x=(3, 4))
case("normalize", "x, eps=0.1, axis=2", x=(2, 3, 4))
case("normalize", "x, axis=(1, 2)", x=(2, 3, 4))
case("normalize", "x, axis=0", x=(2, 3))

# Pooling
SIZES = (6, 5, 4)
for n in (1, 2, 3):
    for suffix in (f"{n}d", "nd"):
        ksize = ", 3" if suffix[0] == str(n) else f", {(3, 2, 3)[:n]}"
        for rest in ("", ", stride=2, pad=1", ", stride=1"):
            case(f"average_pooling_{suffix}", f"x{ksize}{rest}", x=(2, 2, *SIZES[:n]))
            for cover in ("", ", cover_all=False"):
                case(f"max_pooling_{suffix}", f"x{ksize}{rest}{cover}", x=(2, 2, *SIZES[:n]))
        if suffix != "2d":
            arguments = f"x{ksize}, stride=2, pad=1, pad_value=None"
            case(f"average_pooling_{suffix}", arguments, x=(2, 2, *SIZES[:n]))
        arguments = f"x{ksize}, stride=2, return_indices=True"
        case(f"max_pooling_{suffix}", arguments, x=(2, 2, *SIZES[:n]))
        for rest in ("", ", stride=2, pad=1", ", cover_all=False", ", stride=1, cover_all=False"):
            case(f"unpooling_{suffix}", f"x{ksize}{rest}", x=(2, 2, *(3, 2, 2)[:n]))
        outsize = tuple(2 * i for i in (3, 2, 2)[:n])
        case(f"unpooling_{suffix}", f"x, 2, outsize={outsize}", x=(2, 2, *(3, 2, 2)[:n]))
case("max_pooling_2d", "x, 2, pad=1", x=uniform(-9, -1, 1, 1, 4, 4))
case("max_pooling_2d", "F.floor(x) + x * 0, 2, return_indices=True", x=uniform(0, 2, 1, 2, 4, 4))
case("upsampling_2d", "x, t, 2", x=(1, 2, 2, 3), t=integers(4, 1, 2, 2, 3))
case("upsampling_2d", "x, t, 3, stride=2, pad=1, cover_all=False", x=(1, 2, 2, 3), t=integers(4, 1,
     2, 2, 3, low=3))
case("upsampling_2d", "x, t, 2, outsize=(4, 6)", x=(1, 2, 2, 3), t=integers(4, 1, 2, 2, 3))
case("upsampling_2d", "x, t, 2, outsize=(3, 5)", x=(1, 2, 2, 3), t=integers(1, 1, 2, 2, 3))
case("spatial_pyramid_pooling_2d", "x, 2, pooling='max'", x=(2, 3, 5, 6))
case("spatial_pyramid_pooling_2d", "x, 3, pooling='max'", x=(2, 2, 9, 8))
ROIS = fixed(values(0, 0, 6, 8, 2, 1, 5, 4, -1, 3, 3, 12, 1, 1, 1, 1))
FIVE = fixed(values(0, 0, 0, 6, 8, 1, 2, 1, 5, 4, 0, 1, 3, 3, 9))
WHERE = {"x": (2, 3, 8, 10), "r": ROIS, "t": [0, 1, 0, 1]}
EMPTY = {"wrong": "infinite", "note": "the maximum over no pixel is -inf"}
for scale in ("1.0", "0.6"):
    case("roi_pooling_2d", f"x, r.reshape(3, 5), 3, 2, {scale}", x=(2, 3, 8, 10), r=FIVE)
    for name in ("roi_max_pooling_2d", "roi_average_pooling_2d"):
        empty = EMPTY if "max" in name else {}
        case(name, f"x, r.reshape(4, 4), t, 3, {scale}", **WHERE, loose=4, **empty)
        case(name, f"x, r.reshape(4, 4), t, (2, 4), {scale}", **WHERE, loose=4, **empty)
    for name in ("roi_max_align_2d", "roi_average_align_2d"):
        empty = EMPTY if "max" in name else {}
        for rest in (f"3, {scale}", f"(2, 4), {scale}, 2",
            f"(2, 4), {scale}, sampling_ratio=(1, 3)"):
            case(name, f"x, r.reshape(4, 4), t, {rest}", **WHERE, loose=8, **empty)

case("forget", "lambda x: F.sin(x) * x, x", x=(2, 3))
case("forget", "lambda x, y: (F.matmul(x, y), F.tanh(x)), x, y", x=(2, 3), y=(3, 2))
