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
    variables = {"SLURM_JOB_NODELIST": text}
    assert allocations.detect(variables) is allocations.SLURM
    assert allocations.SLURM.slots(variables) == dict.fromkeys(hosts, 1)


@pytest.mark.parametrize("variable", ["SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE"])
def test_slurm_numbers_of_tasks(variable):
    variables = {"SLURM_JOB_NODELIST": "n[1-4]", variable: "8(x2),4,2"}
    assert allocations.SLURM.slots(variables) == {"n1": 8, "n2": 8, "n3": 4, "n4": 2}


def test_tasks_of_slurm_come_before_its_processors():
    variables = {"SLURM_JOB_NODELIST": "n1", "SLURM_TASKS_PER_NODE": "2"}
    variables["SLURM_JOB_CPUS_PER_NODE"] = "64"
    assert allocations.SLURM.slots(variables) == {"n1": 2}


@pytest.mark.parametrize(
    ("variable", "kind", "text"),
    [
        ("PBS_NODEFILE", allocations.PBS, "b\nb\na\n"),
        ("LSB_DJOB_HOSTFILE", allocations.LSF, "b\nb\na\n"),
        ("PE_HOSTFILE", allocations.GRID_ENGINE, "b 2 all.q@b UNDEFINED\na 1 all.q@a UNDEFINED\n"),
        ("OMPI_MCA_orte_default_hostfile", allocations.KUBERNETES, "b slots=2\na slots=1\n"),
        ("HYDRA_HOST_FILE", allocations.KUBERNETES, "b:2\na:1\n"),
        ("I_MPI_HYDRA_HOST_FILE", allocations.KUBERNETES, "b:2\na:1\n"),
    ],
)
def test_file_of_a_batch_system(tmp_path, variable, kind, text):
    path = tmp_path / "hosts"
    path.write_text(text)
    variables = {variable: str(path)}
    assert allocations.detect(variables) is kind
    assert list(kind.slots(variables).items()) == [("b", 2), ("a", 1)]


def test_no_batch_system():
    assert allocations.detect({}) is allocations.LOCAL
    assert allocations.LOCAL.slots({}) == {}


def test_remote_shell_of_each():
    shells = [kind.remote_shell[0] for kind in allocations.ALLOCATIONS]
    assert shells == ["srun", "ssh", "blaunch", "qrsh", "ssh", "ssh"]


def test_host_file(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# ours\na.site slots=4 max_slots=8\n\nb:3\nc 2  # slow\nd\nb\ne max_slots=2\n")
    expected = {"a.site": 4, "b": 4, "c": 2, "d": 1, "e": 1}
    assert allocations.read_host_file(path) == expected


@pytest.mark.parametrize("line", ["a slots=none", "a:0", "a two", "-oX=y", "a;b"])
def test_wrong_line(tmp_path, line):
    path = tmp_path / "hosts"
    path.write_text(f"ok\n{line}\n")
    with pytest.raises(ValueError) as error:
        allocations.read_host_file(path)
    assert str(error.value) == f"line 2 of {path}: {line!r}"


def test_list_of_hosts():
    assert allocations.read_hosts("a:2, b.site,a") == {"a": 3, "b.site": 1}


@pytest.mark.parametrize("text", ["", "a:", "a:0", "a:x", "a,,b", "a b", "a:2:3", "-oX:1"])
def test_wrong_list(text):
    with pytest.raises(ValueError):
        allocations.read_hosts(text)
