from mpchain.testing import cupy_contract


def test_differences():
    wanted = {
        "version": "1",
        "a": {"f": "function(x)", "g": "type", "h": "ufunc"},
        "b": {"k": "type"},
    }
    found = {"version": "2", "a": {"f": "function(x, y)", "h": "ufunc", "more": "type"}, "b": {}}
    assert cupy_contract.differences(wanted, wanted) == []
    assert cupy_contract.differences(found, wanted) == [
        "a.f: function(x, y), not function(x)",
        "a.g: missing",
        "b: missing",
    ]


def test_known():
    known = cupy_contract.known()
    assert int(known["version"].split(".")[0]) >= 14
    assert "initial" not in known["cupy.ndarray"]["max"]  # NumPy has this parameter
