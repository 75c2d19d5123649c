"""Recurrent cells, layers of them over sequences, and cells over trees."""

from tests.oracle.link_cases.case import case

UNUSED = "it gives zeros where ours are None"

# fmt: off
case("L.LSTM(3, 4)", "[link(a), link(b)]", a=(2, 3), b=(2, 3))
case("L.LSTM(3, 4)", "[link(a), link(b), link(c), link.c, link.h]", a=(4, 3), b=(3, 3), c=(1, 3))
case("L.LSTM(3, 4)", "[link(a), link(b), link(c), link.c]", a=(3, 3), b=(0, 3), c=(0, 3),
     note="ours are zeros where it gives none", wrong=["glateral/W"])
case("L.LSTM(None, 4)", "(link.reset_state(), link(x))", x=(2, 3))
case("L.LSTM(4)", "(link.reset_state(), link(x))", x=(2, 3))
case("L.LSTM(3, 4)", "(link.set_state(c, h), link(x), link.c)", c=(3, 4), h=(3, 4), x=(2, 3))
case("L.LSTM(3, 4, 1, 2, 3, 4)", x=(2, 3))
case("L.StatelessLSTM(3, 4)", c=(2, 4), h=(2, 4), x=(2, 3))
case("L.StatelessLSTM(3, 4)", c=(3, 4), h=(2, 4), x=(2, 3))
case("L.StatelessLSTM(4)", "link(None, None, x)", x=(2, 3))
case("L.StatelessLSTM(3, 4)", "link(c, None, x)", c=(2, 4), x=(2, 3))
case("L.StatelessLSTM(3, 4)", "link(None, h, x)", h=(2, 4), x=(2, 3))
for kind in ("GRU", "StatefulGRU"):
    case(f"L.{kind}(3, 4)", "[link(a), link(b)]", a=(2, 3), b=(2, 3))
    case(f"L.{kind}(None, 4)", "[link(a), link(b)]", a=(2, 3), b=(2, 3))
    case(f"L.{kind}(3, 4)", "(link.set_state(h), link(x))[1]", h=(2, 4), x=(2, 3))
    case(f"L.{kind}(3, 4, 1, 2, 3)", "(link.reset_state(), link(x))", x=(2, 3))
case("L.StatelessGRU(3, 4)", h=(2, 4), x=(2, 3))
case("L.StatelessGRU(None, 4, 1, 2, np.arange(4.0))", h=(2, 4), x=(2, 3))
case("L.StatefulMGU(3, 4)", "[link(a), link(b)]", a=(2, 3), b=(2, 3))
case("L.StatefulMGU(3, 4)", "(link.set_state(h), link(x))[1]", h=(2, 4), x=(2, 3))
case("L.StatelessMGU(3, 4)", h=(2, 4), x=(2, 3))
case("L.StatefulPeepholeLSTM(3, 4)", "[link(a), link(b), link.c]", a=(2, 3), b=(2, 3))
case("L.StatefulPeepholeLSTM(None, 4)", "(link.reset_state(), link(x))", x=(2, 3))
case("L.StatefulZoneoutLSTM(3, 4)", "[link(a), link(b), link.c]", a=(2, 3), b=(2, 3),
     config={"train": False})
case("L.StatefulZoneoutLSTM(3, 4, c_ratio=0, h_ratio=0)", "[link(a), link(b), link.c]", a=(2, 3),
     b=(2, 3))
case("L.StatefulZoneoutLSTM(3, 4, c_ratio=1, h_ratio=0)",
     "(link.set_state(c, h), link(x), link.c)", c=(2, 4), h=(2, 4), x=(2, 3))
case("L.StatefulZoneoutLSTM(3, 4)", "(link.set_state(c, h), link(x))[1]", c=(2, 4), h=(2, 4),
     x=(2, 3), config={"train": False})
case("L.StatefulZoneoutLSTM(None, 4)", "(link.reset_state(), link(x))", x=(2, 3),
     config={"train": False})

state = (2, 4)
case("L.ChildSumTreeLSTM(3, 4)", x=(2, 3))
case("L.ChildSumTreeLSTM(3, 4)", c=state, h=state, x=(2, 3))
case("L.ChildSumTreeLSTM(None, 4)", c=state, d=state, h=state, i=state, x=(2, 3))
case("L.ChildSumTreeLSTM(3, 4)", "link(None, d, None, i, x)", d=state, i=state, x=(2, 3))
case("L.ChildSumTreeLSTM(3, 4)", "link(None, d, h, i, x)", d=state, h=state, i=state, x=(2, 3))
case("L.ChildSumTreeLSTM(3, 4)", "link(None, None, x)", x=(2, 3))
case("L.ChildSumTreeLSTM(3, 4)", "link(c, h, None)", c=state, h=state, note=UNUSED,
     wrong=["gW_x/W"])
case("L.NaryTreeLSTM(3, 4)", c=state, d=state, h=state, i=state, x=(2, 3))
case("L.NaryTreeLSTM(None, 4, 3)", c=state, d=state, e=state, h=state, i=state, j=state, x=(2, 3))
case("L.NaryTreeLSTM(3, 4, n_ary=1)", c=state, h=state, x=(2, 3))
case("L.NaryTreeLSTM(3, 4)", "link(c, None, None, i, x)", c=state, i=state, x=(2, 3),
     note="ours are zeros where it gives none", wrong=["gW_h1/W"])
case("L.NaryTreeLSTM(3, 4)", "link(c, d, h, i, None)", c=state, d=state, h=state, i=state,
     note=UNUSED, wrong=["gW_x/W"])

for kind in ("LSTM", "GRU", "RNNTanh", "RNNReLU"):
    cells = "hx, cx" if kind == "LSTM" else "hx"
    for prefix, n in (("NStep", 1), ("NStepBi", 2)):
        sequences = {"a": (2, 3), "b": (4, 3), "c": (1, 3)}
        states = {name: (2 * n, 3, 4) for name in cells.split(", ")}
        name = f"L.{prefix}{kind}"
        case(f"{name}(2, 3, 4, 0.0)", f"link({cells}, [a, b, c])", loose=4, **states, **sequences)
        none = cells.replace("hx", "None").replace("cx", "None")
        case(f"{name}(1, 3, 4, 0.5)", f"link({none}, [a, b, c])", a=(3, 3), b=(3, 3), c=(1, 3))
        case(f"{name}(2, 3, 4, 0.5)", f"link({none}, (a,))", a=(3, 3), config={"train": False})
        case(f"{name}(1, 3, 4, 0.5, initialW=0.5, initial_bias=1)", f"link({none}, [a])", a=(3, 3))
