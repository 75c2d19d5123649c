"""Linear maps, convolutions and recurrent networks."""

from tests.oracle.function_cases.case import case, uniform

# fmt: off
# Connections
case("linear", "x, W, b", x=(4, 3), W=(2, 3), b=(2,), mixed="x")
case("linear", "x, W", x=(4, 3, 2), W=(2, 6))
case("linear", "x, W, b, n_batch_axes=2", x=(2, 4, 3), W=(2, 3), b=(2,))
case("linear", "x, W, b", x=(0, 3), W=(2, 3), b=(2,))
case("bilinear", "x, y, W", x=(4, 2), y=(4, 3), W=(2, 3, 5))
case("bilinear", "x, y, W, V1, V2, b", x=(4, 2), y=(4, 3), W=(2, 3, 5), V1=(2, 5), V2=(3, 5),
     b=(5,))
case("embed_id", "x, W", x=[0, 2, 2, 1], W=(4, 3))
case("embed_id", "x, W, ignore_label=-1", x=[[0, -1], [2, 3]], W=(4, 3))
case("embed_id", "x, W, ignore_label=2", x=[[0, 1], [2, 3]], W=(4, 3))
case("shift", x=(2, 9, 4, 5))
case("shift", "x, ksize=3, dilate=2", x=(2, 10, 6, 5))
case("shift", "x, ksize=5", x=(1, 26, 6, 5))
CONVOLUTION = ("", ", stride=2, pad=1", ", cover_all=True, stride=2", ", dilate=2, pad=2")
for n in (1, 2, 3):
    sizes, kernel = (7, 6, 5)[:n], (3, 2, 3)[:n]
    for name in (f"convolution_{n}d", "convolution_nd"):
        for options in CONVOLUTION:
            case(name, f"x, W, b{options}", x=(2, 3, *sizes), W=(2, 3, *kernel), b=(2,), loose=4)
        case(name, "x, W, groups=2", x=(2, 4, *sizes), W=(4, 2, *kernel), loose=4)
    sizes = (4, 3, 3)[:n]
    for name in (f"deconvolution_{n}d", "deconvolution_nd"):
        for options in ("", ", stride=2, pad=1", ", dilate=2", ", dilate=2, stride=2, pad=1"):
            case(name, f"x, W, b{options}", x=(2, 3, *sizes), W=(3, 2, *kernel), b=(2,), loose=4)
        case(name, "x, W, groups=2", x=(2, 4, *sizes), W=(4, 2, *kernel), loose=4)
        outsize = tuple(2 * (i - 1) + k + 1 for i, k in zip(sizes, kernel))
        arguments = f"x, W, stride=2, outsize={outsize}"
        case(name, arguments, x=(2, 3, *sizes), W=(3, 2, *kernel), loose=4)
case("convolution_2d", "x, W, b, (2, 1), (1, 2), dilate=(1, 2), groups=3", x=(1, 6, 7, 6),
     W=(3, 2, 3, 2), b=(3,), mixed="x", loose=4)
case("convolution_2d", "x, W, stride=2, cover_all=True, dilate=2", x=(1, 2, 8, 8), W=(2, 2, 2, 3),
     loose=4)
case("convolution_nd", "x, W, stride=2, cover_all=True, dilate=2", x=(1, 2, 8, 8), W=(2, 2, 2, 3),
     loose=4)
case("deconvolution_2d", "x, W, b, (2, 1), (1, 0), dilate=(2, 1), groups=2", x=(1, 4, 4, 3),
     W=(4, 3, 3, 2), b=(6,), mixed="x", loose=4)
case("dilated_convolution_2d", "x, W, b, 2, 1, 2", x=(2, 3, 7, 6), W=(2, 3, 3, 2), b=(2,), loose=4)
case("dilated_convolution_2d", "x, W, dilate=2, cover_all=True, stride=2", x=(1, 2, 8, 8), W=(2, 2,
     2, 3), loose=4)
case("depthwise_convolution_2d", "x, W, b", x=(2, 3, 5, 4), W=(2, 3, 3, 2), b=(6,), loose=4)
case("depthwise_convolution_2d", "x, W, stride=2, pad=1", x=(2, 3, 5, 4), W=(2, 3, 3, 2), loose=4)
case("local_convolution_2d", "x, W, b", x=(2, 3, 5, 4), W=(2, 3, 3, 3, 3, 2), b=(2, 3, 3), loose=4)
case("local_convolution_2d", "x, W, stride=2", x=(2, 3, 5, 4), W=(2, 2, 2, 3, 3, 2), loose=4)
DEFORMABLE = "deformable_convolution_2d_sampler"
case(DEFORMABLE, "x, offset, W, b", x=(2, 3, 5, 4), offset=uniform(-1, 1, 2, 12, 3, 3),
     W=(2, 3, 3, 2), b=(2,), loose=8)
case(DEFORMABLE, "x, offset, W, stride=2, pad=1", x=(2, 3, 5, 5), offset=uniform(-0.9, 0.9, 2, 18,
     3, 3),
     W=(2, 3, 3, 3), loose=8)
case(DEFORMABLE, "x, offset, W, pad=1", x=(1, 2, 4, 4), offset=uniform(-2.5, 2.5, 1, 18, 4, 4),
     W=(2, 2, 3, 3), loose=8)


def recurrent(name, layers, weights, hidden_states, *, lengths=(3, 3, 2, 1), options="", n_in=3):
    """Adds a case of an n_step function; weights are drawn layer by layer, direction by
    direction."""
    directions = 2 if "_bi" in name else 1
    units, arrays, ws, bs = 2, {}, [], []
    for i in range(layers * directions):
        layer_in = n_in if i < directions else units * directions
        for j in range(weights):
            arrays[f"w{i}_{j}"] = (units, layer_in if j < weights // 2 else units)
            arrays[f"b{i}_{j}"] = (units,)
        ws.append(f"[{', '.join(f'w{i}_{j}' for j in range(weights))}]")
        bs.append(f"[{', '.join(f'b{i}_{j}' for j in range(weights))}]")
    for state in hidden_states:
        arrays[state] = (layers * directions, lengths[0], units)
    arrays |= {f"x{i}": (n, n_in) for i, n in enumerate(lengths)}
    xs = ", ".join(f"x{i}" for i in range(len(lengths)))
    states = ", ".join(hidden_states)
    arguments = f"{layers}, 0.0, {states}, [{', '.join(ws)}], [{', '.join(bs)}], [{xs}]{options}"
    case(name, arguments, **arrays, loose=16)


for bi in ("", "bi"):
    for layers in (1, 2):
        recurrent(f"n_step_{bi}lstm", layers, 8, ["hx", "cx"])
        recurrent(f"n_step_{bi}gru", layers, 6, ["hx"])
        recurrent(f"n_step_{bi}rnn", layers, 2, ["hx"])
        recurrent(f"n_step_{bi}rnn", layers, 2, ["hx"], options=", activation='relu'")
