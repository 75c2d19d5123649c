"""A double of cuDNN's front end for the double of CuPy: NumPy computes a graph node by node.

Tests replace the module ``cudnn`` with it. Its graphs read and write memory at the given addresses,
with the strides of their tensors, in the stream of the handle. It has the calls that mpchain makes,
in the order that cuDNN requires, and refuses other calls. test_cudnn_plans.py checks that its
graphs have the same meaning as graphs of the real front end.
"""

import enum
import itertools
import json
import weakref
from typing import NamedTuple

import numpy as np
from cupy import _machine
from cupy._pointers import block_at, view_at

from cudnn_double import nodes

WORKSPACE = 256
ALIGNMENT = 16

data_type = enum.Enum("data_type", "HALF BFLOAT16 FLOAT DOUBLE INT64")
heur_mode = enum.Enum("heur_mode", "A B FALLBACK")
numerical_note = enum.Enum(
    "numerical_note",
    "TENSOR_CORE DOWN_CONVERT_INPUTS REDUCED_PRECISION_REDUCTION FFT NONDETERMINISTIC WINOGRAD",
)
norm_forward_phase = enum.Enum("norm_forward_phase", "INFERENCE TRAINING")
_DTYPES = {"HALF": "float16", "FLOAT": "float32", "DOUBLE": "float64", "INT64": "int64"}

executed = []
"""The executed plans, in order: (tags of the nodes, name of the plan)."""

python_engines = []
"""Names of engines that the front end ranks before cuDNN's plans: a fake manifest."""

unsupported = set()  # tags of nodes that have no plan


class Plan(NamedTuple):
    """An entry of the ranked list; entries of the front end's own engines declare no notes."""

    name: str
    notes: frozenset
    n_bytes: int
    engine_id: int = 0


class Engine(NamedTuple):
    """An engine of the front end."""

    name: str


class cudnnGraphNotSupportedError(Exception):
    """cuDNN has no plan for a graph."""


class Handle:
    """A handle, which belongs to the device that was current when it was made."""

    def __init__(self):
        self.device_id = _machine.here.device
        self.stream = 0


def create_handle():
    """Returns a handle of the current device."""
    return Handle()


def destroy_handle(handle):
    """Destroys a handle."""
    handle.device_id = None


def set_stream(handle, stream):
    """Sets the stream, by its number, on which the handle's graphs run."""
    handle.stream = stream


class Tensor:
    """A tensor of a graph; a computed tensor is virtual unless it is declared a result."""

    def __init__(self, uid, dim=None, stride=None, kind=None, by_value=False):
        self.uid, self.dim, self.stride, self.kind = uid, dim, stride, kind
        self.is_by_value, self.is_virtual = by_value, dim is None

    def get_dim(self):
        return self.dim

    def set_output(self, value):
        self.is_virtual = not value
        return self

    def set_dim(self, dim):
        self.dim = dim
        return self

    def set_stride(self, stride):
        self.stride = stride
        return self

    def set_data_type(self, kind):
        self.kind = kind
        return self

    def set_uid(self, uid):
        self.uid = uid
        return self

    def describe(self):
        """Returns the tensor's entry in the front end's JSON."""
        return {
            "uid": self.uid,
            "dim": self.dim,
            "stride": self.stride,
            "data_type": self.kind.name,
            "is_virtual": self.is_virtual,
            "is_pass_by_value": self.is_by_value,
        }


def _dropout(dropout, kinds):
    """Returns the inputs and attributes of a dropout: (ratio, seed, offset), or a mask and
    factors of these kinds."""
    if dropout is None:
        return {}, {}
    has_seed = isinstance(dropout[0], float)
    tensors = [x.kind.name for x in dropout[has_seed:]]
    wanted = ["INT64", "INT64"] if has_seed else [tensors[0], *kinds]
    if tensors != wanted:
        raise TypeError(f"dropout: tensors of {tensors}, not of {wanted}")
    drawn = {f"dropout_{i}": x for i, x in enumerate(dropout) if i or not has_seed}
    attributes = {"_dropout_n": len(dropout)}
    return drawn, attributes | ({"dropout_0": dropout[0]} if has_seed else {})


_STEPS = "made validated built_operation_graph created_plans checked_support built_plans".split()


class pygraph:
    """A graph of operations; see :mod:`cudnn_double.nodes` for what they compute."""

    def __init__(
        self, *, io_data_type, intermediate_data_type, compute_data_type, handle=None, **where
    ):
        self._compute, self._handle, self._state = compute_data_type, handle, "made"
        self._intermediate, self._io = intermediate_data_type, io_data_type
        self._tensors, self._nodes = [], []
        self._uids = itertools.count(1000)

    def tensor(self, *, dim, stride, data_type, uid, is_pass_by_value=False):
        if len(dim) != len(stride) or min(dim) < 1 or min(stride) < 1:
            raise ValueError(f"tensor: sizes {dim} and strides {stride}")
        self._tensors.append(Tensor(uid, dim, stride, data_type, is_pass_by_value))
        return self._tensors[-1]

    def _add(self, tag, ins, outs, **attributes):
        """Adds a node; returns the tensors of its results."""
        made = {port: Tensor(next(self._uids), kind=self._intermediate) for port in outs}
        self._tensors += made.values()
        node = {"tag": tag, "compute_data_type": self._compute.name, **attributes}
        self._nodes.append((node, {k: x for k, x in ins.items() if x is not None}, made))
        return [*made.values()]

    def _convolve(self, tag, ins, out, pre_padding, post_padding, stride, dilation):
        geometry = {"pre_padding": pre_padding, "post_padding": post_padding}
        geometry |= {"stride": stride, "dilation": dilation, "math_mode": "CROSS_CORRELATION"}
        return self._add(tag, ins, [out], **geometry)[0]

    def conv_fprop(self, *, image, weight, **geometry):
        return self._convolve("CONV_FPROP", {"X": image, "W": weight}, "Y", **geometry)

    def conv_dgrad(self, *, loss, filter, **geometry):
        return self._convolve("CONV_DGRAD", {"DY": loss, "W": filter}, "DX", **geometry)

    def conv_wgrad(self, *, image, loss, **geometry):
        return self._convolve("CONV_WGRAD", {"X": image, "DY": loss}, "DW", **geometry)

    def batchnorm(self, *, input, scale, bias, in_running_mean, in_running_var, epsilon, momentum):
        ins = {"X": input, "SCALE": scale, "BIAS": bias, "EPSILON": epsilon, "MOMENTUM": momentum}
        ins |= {"PREV_RUNNING_MEAN": in_running_mean, "PREV_RUNNING_VAR": in_running_var}
        outs = "Y MEAN INV_VARIANCE NEXT_RUNNING_MEAN NEXT_RUNNING_VAR".split()
        return self._add("BATCHNORM", ins, outs, peer_stats=[])

    def _normalize_backward(self, tag, grad, input, scale, mean, inv_variance, **attributes):
        ins = {"DY": grad, "X": input, "SCALE": scale, "MEAN": mean, "INV_VARIANCE": inv_variance}
        return self._add(tag, ins, ["DX", "DSCALE", "DBIAS"], **attributes)

    def batchnorm_backward(self, **ins):
        return self._normalize_backward("DBN", **ins, peer_stats=[])

    def layernorm(self, *, norm_forward_phase, input, scale, bias, epsilon):
        ins = {"X": input, "SCALE": scale, "BIAS": bias, "EPSILON": epsilon}
        outs = "Y MEAN INV_VARIANCE".split()
        return self._add("LAYER_NORM", ins, outs, forward_phase=norm_forward_phase.name)

    def layernorm_backward(self, **ins):
        return self._normalize_backward("LAYER_NORM_BPROP", **ins)

    def rmsnorm(self, *, norm_forward_phase, input, scale, epsilon):
        ins = {"X": input, "SCALE": scale, "EPSILON": epsilon}
        outs = ["Y", "INV_VARIANCE"]
        return self._add("RMS_NORM", ins, outs, forward_phase=norm_forward_phase.name)

    def rmsnorm_backward(self, *, grad, input, scale, inv_variance, has_dbias):
        ins = {"DY": grad, "X": input, "SCALE": scale, "INV_VARIANCE": inv_variance}
        return self._add("RMS_NORM_BPROP", ins, ["DX", "DSCALE", "DBIAS"][: 2 + has_dbias])

    def matmul(self, *, A, B):
        return self._add("MATMUL", {"A": A, "B": B}, ["C"], padding_value=0.0)[0]

    def bias(self, *, input, bias):
        return self._add("POINTWISE", {"IN_0": input, "IN_1": bias}, ["OUT_0"], mode="ADD")[0]

    def sdpa(
        self,
        *,
        q,
        k,
        v,
        generate_stats,
        attn_scale,
        use_causal_mask,
        bias,
        dropout=None,
        rng_dump=None,
    ):
        options = {"generate_stats": generate_stats, "attn_scale": attn_scale}
        options["use_causal_mask"] = use_causal_mask
        drawn, of_dropout = _dropout(dropout, ["FLOAT"])
        ins = {"q": q, "k": k, "v": v, "bias": bias, **drawn}
        made = self._add("SDPA", ins, ["O", "Stats"], **options, **of_dropout)
        if rng_dump is not None:
            self._nodes[-1][2]["rng_dump"] = rng_dump
        return made

    def sdpa_backward(self, *, q, k, v, o, dO, stats, bias, dropout=None, **options):
        if options.keys() != {"attn_scale", "use_causal_mask", "use_deterministic_algorithm"}:
            raise TypeError(f"sdpa_backward: options {sorted(options)}")
        drawn, of_dropout = _dropout(dropout, ["FLOAT", "FLOAT"])
        ins = {"q": q, "k": k, "v": v, "o": o, "dO": dO, "stats": stats, "bias": bias, **drawn}
        return self._add("SDPA_BWD", ins, ["dQ", "dK", "dV"], **options, **of_dropout)

    def __str__(self):
        described = [
            {
                **n,
                "inputs": {k: x.uid for k, x in i.items()},
                "outputs": {k: x.uid for k, x in o.items()},
            }
            for n, i, o in self._nodes
        ]
        return json.dumps({"nodes": described, "tensors": [t.describe() for t in self._tensors]})

    # ---- The steps from a graph to a plan.

    def _step(self, name):
        if _STEPS.index(self._state) != _STEPS.index(name) - 1:
            raise RuntimeError(f"a graph that is {self._state} cannot be {name}")
        self._state = name

    def validate(self):
        self._step("validated")
        for x in self._tensors:
            if not x.is_virtual and None in (x.dim, x.stride, x.kind):
                raise ValueError(f"tensor {x.uid} has no sizes, strides or type")

    def build_operation_graph(self):
        self._step("built_operation_graph")

    def create_execution_plans(self, modes):
        self._step("created_plans")
        reason = nodes.why_unsupported(json.loads(str(self)))
        if self._nodes[0][0]["tag"] in unsupported:
            reason = "the test lets no engine support this node"
        if reason is not None:
            raise cudnnGraphNotSupportedError(reason)
        copies = sum(int(np.prod(x.dim)) * 8 for x in self._tensors if not x.is_virtual)
        fast = {"TENSOR_CORE", "NONDETERMINISTIC", "DOWN_CONVERT_INPUTS"}
        plans = [("rough", {"REDUCED_PRECISION_REDUCTION"}, 0), ("fast", fast, copies // 4)]
        if self._nodes[0][0]["tag"] == "MATMUL":
            plans = [("fast", {"TENSOR_CORE", "DOWN_CONVERT_INPUTS"}, 0)]
        elif self._nodes[0][0].get("use_deterministic_algorithm", True):
            plans += [("exact", set(), WORKSPACE)]
        own = [Plan(name, frozenset(), 0, 20_600 + i) for i, name in enumerate(python_engines)]
        self.plans = own + [Plan(*plan) for plan in plans]
        self._plan_index, self._barred = 0, set()

    def _bar(self, is_barred):
        self._barred |= {i for i, plan in enumerate(self.plans) if is_barred(plan)}

    def deselect_numeric_notes(self, notes):
        names = {note.name for note in notes}
        self._bar(lambda plan: plan.notes & names)

    def deselect_workspace_greater_than(self, n):
        self._bar(lambda plan: plan.n_bytes > n)

    def deselect_engines(self, names):
        self._bar(lambda plan: any(name in plan.name for name in names))

    def get_plan_name_at_index(self, index):
        return self.plans[index].name

    @property
    def selected_engine(self):
        plan = self.plans[self._plan_index]
        return Engine(plan.name.partition("[")[0]) if plan.engine_id >= 20_000 else None

    def check_support(self):
        self._step("checked_support")
        if len(self._barred) == len(self.plans):
            raise cudnnGraphNotSupportedError("No execution plans support the graph.")

    def build_plans(self):
        self._step("built_plans")
        self._plan_index = min({*range(len(self.plans))} - self._barred)

    def get_workspace_size(self):
        return self.plans[self._plan_index].n_bytes

    # ---- Execution.

    def execute(self, pointers, workspace, handle):
        """Runs the nodes on the memory at the given addresses, in the stream of the handle."""
        if self._state != "built_plans":
            raise RuntimeError(f"a graph that is {self._state} cannot run")
        if handle.device_id != _machine.here.device:
            raise RuntimeError(f"a handle of device {handle.device_id} on another one")
        stream = _machine.stream_of(handle.stream)
        graph = json.loads(str(self))
        made = {uid for node in graph["nodes"] for uid in node["outputs"].values()}
        values, blocks = {}, {}
        for x in graph["tensors"]:
            if x["is_pass_by_value"]:
                values[x["uid"]] = _by_value(pointers[x["uid"]], x)
            elif not x["is_virtual"]:
                values[x["uid"]], blocks[x["uid"]] = _view(pointers[x["uid"]], x)
        self._use_workspace(workspace, stream, [values[uid] for uid in blocks])
        if stream.capture is None:
            _machine.ledger.launches["cudnn", _machine.place()] += 1
            _machine.count_moved(
                f"cudnn {graph['nodes'][0]['tag']}",
                [values[uid] for uid in blocks],
                **nodes.describe_work(graph),
            )
        for uid, block in sorted(blocks.items(), key=lambda item: item[0] in made):
            block.access(stream, writes=uid in made)
        reads = {uid: x for uid, x in values.items() if uid not in made}
        plan = weakref.ref(self)

        def again():
            if plan() is None:
                raise RuntimeError("a graph launches kernels of a plan that is gone")
            for uid, result in nodes.interpret(graph, reads).items():
                if uid in values:
                    values[uid][...] = result

        if stream.capture is not None:
            stream.capture.keep_blocks(blocks.values())
            stream.capture.work.append(again)
        if _machine.ledger.computes:
            again()
        executed.append(
            ("+".join(node["tag"] for node in graph["nodes"]), self.plans[self._plan_index].name)
        )

    def _use_workspace(self, pointer, stream, views):
        size = self.get_workspace_size()
        if not size:
            return
        block = block_at(pointer, size, "the workspace", ALIGNMENT)
        block.access(stream, writes=True)
        start = pointer - block.ptr
        used = block.host.reshape(-1).view(np.uint8)[start : start + size]
        for view in views:
            if np.shares_memory(used, view):
                raise RuntimeError("the workspace overlaps the memory of a tensor")
        used[...] = 0xA5


def _view(pointer, x):
    """Returns the array of a tensor, and its block of memory."""
    dtype = _DTYPES[x["data_type"]]
    return view_at(pointer, x["dim"], x["stride"], dtype, f"tensor {x['uid']}", ALIGNMENT)


def _by_value(pointer, x):
    """Returns the number at an address of the host."""
    dtype = np.dtype(_DTYPES[x["data_type"]])
    ctypes_type = np.ctypeslib.as_ctypes_type(dtype)
    return np.full(x["dim"], ctypes_type.from_address(pointer).value, dtype)
