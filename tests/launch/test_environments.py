import pytest

from launch import environments, rank

OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_RANK": "5",
}
HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
}


@pytest.mark.parametrize(
    ("starter", "variables"), [("Open MPI", OPEN_MPI), ("MPICH", HYDRA), ("Slurm", SLURM)]
)
def test_all_questions(starter, variables):
    here = environments.detect(variables)
    assert here.starter == starter
    assert (here.rank, here.size, here.local_rank, here.local_size) == (5, 8, 1, 4)


def test_nobody():
    here = environments.detect({"HOME": "/"})
    assert here.starter == "the shell"
    assert (here.rank, here.size, here.local_rank, here.local_size) == (0, 1, 0, 1)


@pytest.mark.parametrize(("variables", "starter"), [(OPEN_MPI, "Open MPI"), (HYDRA, "MPICH")])
def test_mpirun_inside_slurm_comes_first(variables, starter):
    batch = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", **variables}
    assert environments.detect(batch).starter == starter


def test_pmix_tells_the_rank_alone():
    here = environments.detect({"PMIX_RANK": "3"})
    assert (here.starter, here.rank, here.size) == ("PMIx", 3, 1)


def test_slurm_with_different_numbers_of_tasks():
    assert environments.detect({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "3,1"}).local_size == 3


def test_spare_ranks_get_no_share_of_the_cores():
    def n_at_work(*numbers):
        place = environments.Environment("Open MPI", *numbers)
        return rank._n_at_work(place, {rank.SPARES_VARIABLE: "3"})

    assert n_at_work(1, 11, 1, 4) == 4  # the three hosts have 4, 4 and 3 ranks
    assert n_at_work(5, 11, 1, 4) == 4
    assert n_at_work(9, 11, 1, 3) == 3  # if a host has only spare ranks, all of them count
    assert n_at_work(3, 7, 3, 7) == 4
    assert rank._n_at_work(environments.Environment("Open MPI", 0, 2, 0, 2), {}) == 2
