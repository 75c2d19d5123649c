import pytest

from launch import allocations


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node7", ["node7"]),
        ("a,b", ["a", "b"]),
        ("node[1-3,07]", ["node1", "node2", "node3", "node07"]),
        ("n[08-11],login", ["n08", "n09", "n10", "n11", "login"]),
        ("r[1-2]c[1,3]-ib", ["r1c1-ib", "r1c3-ib", "r2c1-ib", "r2c3-ib"]),
    ],
)
def test_slurm_list(text, hosts):
    assert allocations.hosts({"SLURM_JOB_NODELIST": text}) == hosts


@pytest.mark.parametrize("variable", ["PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE"])
def test_host_file_names_each_host_once(tmp_path, variable):
    path = tmp_path / "hosts"
    path.write_text("b 2\nb 2\n\na\n")
    assert allocations.hosts({variable: str(path)}) == ["b", "a"]


def test_no_batch_system():
    assert allocations.hosts({}) == ["localhost"]
