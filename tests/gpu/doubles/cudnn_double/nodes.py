"""Computes the nodes of cuDNN's graphs, in NumPy and double precision.

A graph has the form that the front end prints: {"nodes": [...], "tensors": [...]}.
"""

import itertools
import math

import numpy as np


def interpret(graph, values):
    """Returns the tensors that a graph computes from arrays: {uid: array}."""
    tensors = {x["uid"]: x for x in graph["tensors"]}
    values = {uid: np.asarray(x, None if x.dtype == "i8" else "d") for uid, x in values.items()}
    made = {}
    for node in graph["nodes"]:
        ins = {port: values[uid] for port, uid in node["inputs"].items()}
        shapes = {port: tensors[uid]["dim"] for port, uid in node["outputs"].items()}
        results = _NODES[node["tag"]](node, ins, shapes)
        for port, uid in node["outputs"].items():
            if not tensors[uid]["is_virtual"] and list(results[port].shape) != shapes[port]:
                raise ValueError(f"{port} is {results[port].shape}, not {shapes[port]}")
            made[uid] = values[uid] = results[port]
    return made


def why_unsupported(graph):
    """Returns why cuDNN has no plan for a graph, for the cases that this double knows; otherwise
    None."""
    types = {x["data_type"] for x in graph["tensors"]}
    tags = {node["tag"] for node in graph["nodes"]}
    if "DOUBLE" in types and not any(tag.startswith("CONV") for tag in tags):
        return "No valid engine configs for double precision"
    if tags & {"SDPA", "SDPA_BWD"}:
        if graph["tensors"][0]["data_type"] not in ("HALF", "BFLOAT16"):
            return "No execution plans support the graph."
        if any(x["dim"][3] % 8 for x in graph["tensors"][:3]):
            return "hidden_dim should be multiple of 8"
    if tags & {"BATCHNORM", "DBN"}:
        size = {"HALF": 2, "FLOAT": 4}[graph["tensors"][0]["data_type"]]
        if graph["tensors"][0]["dim"][1] * size % 16:
            return "No valid engine configs for this number of channels"
    return None


# Convolutions: for each element of the window, the product of a filter and a slice of x.


def _elements(node, x_shape, W_shape, y_shape):
    """Yields pairs of indices: an element of the window, and the slice of the padded x that this
    element of the filter multiplies."""
    axes = [*zip(node["stride"], node["dilation"], y_shape[2:])]
    for place in itertools.product(*map(range, W_shape[2:])):
        parts = [slice(e * d, e * d + (n - 1) * s + 1, s) for e, (s, d, n) in zip(place, axes)]
        yield (..., *place), (..., *parts)


def _padding(node):
    return [(0, 0), (0, 0), *zip(node["pre_padding"], node["post_padding"])]


def _output_shape(node, x_shape, W_shape):
    shape = [x_shape[0], W_shape[0]]
    for n, k, (a, b), s, d in zip(
        x_shape[2:], W_shape[2:], _padding(node)[2:], node["stride"], node["dilation"]
    ):
        shape.append((n + a + b - (k - 1) * d - 1) // s + 1)
    return shape


def _grouped(x, n_groups, axis):
    shape = [*x.shape[:axis], n_groups, x.shape[axis] // n_groups, *x.shape[axis + 1 :]]
    return x.reshape(shape)


def _convolve(node, ins, shapes):
    """Computes the one of x, y and W in y = x * W that is no input."""
    x = ins.get("X", None)
    x_shape = x.shape if x is not None else shapes["DX"]
    y_shape = ins["DY"].shape if "DY" in ins else _output_shape(node, x.shape, ins["W"].shape)
    W_shape = ins["W"].shape if "W" in ins else shapes["DW"]
    n_groups = x_shape[1] // W_shape[1]
    padding = _padding(node)
    padded = np.zeros([n + a + b for n, (a, b) in zip(x_shape, padding)])
    inner = tuple(slice(a, a + n) for n, (a, _) in zip(x_shape, padding))
    padded[inner] = 0 if x is None else x
    y = ins.get("DY", np.zeros(y_shape))
    W = ins.get("W", np.zeros(W_shape))
    for of_W, of_x in _elements(node, x_shape, W_shape, y_shape):
        a = _grouped(padded[of_x], n_groups, 1)
        b, c = _grouped(W[of_W], n_groups, 0), _grouped(y, n_groups, 1)
        if x is None:
            padded[of_x] += np.einsum("goc,ngo...->ngc...", b, c).reshape(padded[of_x].shape)
        elif "W" in ins:
            y = y + np.einsum("goc,ngc...->ngo...", b, a).reshape(y.shape)
        else:
            n = (a.shape[0], *a.shape[1:3], -1), (c.shape[0], *c.shape[1:3], -1)
            W[of_W] = np.einsum("ngcs,ngos->goc", a.reshape(n[0]), c.reshape(n[1])).reshape(
                W[of_W].shape
            )
    return {"DX": padded[inner], "Y": y, "DW": W}


# Normalizations over all axes except the second (batch) or the first (layer).


def _axes(node):
    return (1, 2, 3) if node["tag"].startswith("LAYER") else (0, 2, 3)


def _normalize(node, ins, shapes):
    x, axes = ins["X"], _axes(node)
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    inverse = (var + ins["EPSILON"]) ** -0.5
    results = {"Y": (x - mean) * inverse * ins["SCALE"] + ins["BIAS"]}
    results |= {"MEAN": mean, "INV_VARIANCE": inverse}
    if "MOMENTUM" in ins:
        n, part = x.size / mean.size, ins["MOMENTUM"]
        for name, new in (("MEAN", mean), ("VAR", var * n / max(n - 1, 1))):
            old = ins[f"PREV_RUNNING_{name}"]
            results[f"NEXT_RUNNING_{name}"] = (1 - part) * old + part * new
    return results


def _normalize_backward(node, ins, shapes):
    g, axes = ins["DY"], _axes(node)
    normalized = (ins["X"] - ins["MEAN"]) * ins["INV_VARIANCE"]
    h = g * ins["SCALE"]
    along = h - h.mean(axes, keepdims=True)
    gx = (along - normalized * (h * normalized).mean(axes, keepdims=True)) * ins["INV_VARIANCE"]
    others = tuple(a for a, n in enumerate(ins["SCALE"].shape) if n == 1)
    sums = {"DSCALE": g * normalized, "DBIAS": g}
    return {"DX": gx, **{port: x.sum(others, keepdims=True) for port, x in sums.items()}}


def _divide_by_rms(node, ins, shapes):
    x = ins["X"]
    inverse = ((x * x).mean((1, 2, 3), keepdims=True) + ins["EPSILON"]) ** -0.5
    return {"Y": x * inverse * ins["SCALE"], "INV_VARIANCE": inverse}


def _divide_by_rms_backward(node, ins, shapes):
    g, x, inverse = ins["DY"], ins["X"], ins["INV_VARIANCE"]
    h = g * ins["SCALE"]
    gx = inverse * h - x * inverse**3 * (h * x).mean((1, 2, 3), keepdims=True)
    return {"DX": gx, "DSCALE": (g * x * inverse).sum(0, keepdims=True)}


# Attention, row by row of each head.


def _scores(node, ins):
    scores = node["attn_scale"] * np.einsum("bhle,bhse->bhls", ins["q"], ins["k"])
    scores += ins.get("bias", 0)
    if node["use_causal_mask"]:
        for row in range(scores.shape[2]):
            scores[:, :, row, row + 1 :] = -np.inf
    return scores


def _attend(node, ins, shapes):
    scores = _scores(node, ins)
    top = scores.max(axis=3, keepdims=True)
    terms = np.exp(scores - top)
    sums = terms.sum(axis=3, keepdims=True)
    kept, factor = _dropout(node, ins, scores.shape)
    y = np.einsum("bhls,bhsv->bhlv", terms / sums * kept * factor, ins["v"])
    return {"O": y, "Stats": top + np.log(sums), "rng_dump": kept}


def _dropout(node, ins, shape):
    """Returns the mask of the weights, of 0 and 1, and the factor of weights that are kept."""
    n = node.get("_dropout_n")
    if n is None:
        return 1, 1
    if "dropout_0" in ins:  # a mask that somebody else has drawn
        factor, *inverse = (ins[f"dropout_{i}"] for i in range(1, n))
        assert all(abs(x * factor - 1) < 1e-5 for x in inverse), "factors that do not fit"
        return ins["dropout_0"], factor
    seed, offset = (int(ins[f"dropout_{i}"].ravel()[0]) for i in (1, 2))
    uniform = np.random.Generator(np.random.Philox(seed).advance(offset)).random(shape)
    return (uniform >= node["dropout_0"]).astype("d"), 1 / (1 - node["dropout_0"])


def _attend_backward(node, ins, shapes):
    weights, g = np.exp(_scores(node, ins) - ins["stats"]), ins["dO"]
    kept, factor = _dropout(node, ins, weights.shape)
    change = np.einsum("bhlv,bhsv->bhls", g, ins["v"]) * kept * factor
    change -= (g * ins["o"]).sum(axis=3, keepdims=True)
    change *= weights * node["attn_scale"]
    return {
        "dQ": np.einsum("bhls,bhse->bhle", change, ins["k"]),
        "dK": np.einsum("bhls,bhle->bhse", change, ins["q"]),
        "dV": np.einsum("bhls,bhlv->bhsv", weights * kept * factor, g),
    }


# Products.


def _multiply(node, ins, shapes):
    return {"C": np.einsum("nij,njk->nik", ins["A"], ins["B"])}


def _pointwise(node, ins, shapes):
    functions = {"ADD": np.add}
    return {"OUT_0": functions[node["mode"]](ins["IN_0"], ins["IN_1"])}


_NODES = {
    "MATMUL": _multiply,
    "POINTWISE": _pointwise,
    "SDPA": _attend,
    "SDPA_BWD": _attend_backward,
    "CONV_FPROP": _convolve,
    "CONV_DGRAD": _convolve,
    "CONV_WGRAD": _convolve,
    "BATCHNORM": _normalize,
    "DBN": _normalize_backward,
    "LAYER_NORM": _normalize,
    "LAYER_NORM_BPROP": _normalize_backward,
    "RMS_NORM": _divide_by_rms,
    "RMS_NORM_BPROP": _divide_by_rms_backward,
}


# Work of graphs on a GPU.


def describe_work(graph):
    """Returns the floating-point operations of a graph's products, and the bytes that cuDNN copies
    in addition.

    Convolutions in half precision want the channels last: cuDNN copies other arrays.
    """
    tensors = {x["uid"]: x for x in graph["tensors"]}
    flops, copied = 0.0, 0
    for node in graph["nodes"]:
        ports = {**node["inputs"], **node["outputs"]}
        dims = {port: tensors[uid]["dim"] for port, uid in ports.items()}
        if node["tag"].startswith("CONV"):
            y, W = ("DY" if "DY" in dims else "Y"), ("DW" if "DW" in dims else "W")
            (uid, *_) = graph["nodes"][-1]["outputs"].values()
            last = tensors[uid]["dim"]
            flops += 2.0 * math.prod(dims[y] or last) * math.prod(dims[W][1:])
            copied += sum(map(_copied, (tensors[uid] for uid in ports.values())))
        elif node["tag"] == "MATMUL":
            flops += 2.0 * math.prod(dims["A"]) * dims["B"][-1]
        elif node["tag"].startswith("SDPA"):
            n_products = 5 if node["tag"] == "SDPA_BWD" else 2
            share = 0.5 if node["use_causal_mask"] else 1.0
            flops += 2.0 * share * n_products * math.prod(dims["q"]) * dims["k"][2]
    return {"flops": flops, "copied": copied}


def _copied(x):
    if x["data_type"] != "HALF" or x["is_virtual"]:
        return 0
    shape, strides = x["dim"], x["stride"]
    is_last = shape[1] == 1 or strides[1] == 1 or all(n == 1 for n in shape[2:])
    return 0 if is_last else 2 * 2 * math.prod(shape)
