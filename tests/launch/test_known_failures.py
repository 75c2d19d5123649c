"""Messages of MPI libraries at a failed start are explained, with the remedy."""

import pytest

from launch.known_failures import KNOWN, explain
from tests.launch.imitated_mpirun import run_with_mpirun

# Planted messages, as their programs write them, and words of the remedy.
PLANTED = [
    (
        "There are not enough slots available in the system to satisfy the 99\n"
        "slots that were requested by the application:\n\n  true\n",
        "--oversubscribe",
    ),
    ("prterun has detected an attempt to run as root.\n", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"),
    (
        "ssh: Could not resolve hostname nosuchhost: Name or service not known\n"
        "A daemon failed to report back after being spawned. This could\n",
        "correct --hosts",
    ),
    ("Host key verification failed.\n", "accept the key"),
    ("me@b: Permission denied (publickey,password).\n", "ssh-copy-id"),
    (
        "prterun was unable to find the specified executable file, and therefore did\n"
        "not launch the job.\n",
        "file system that all hosts share",
    ),
    (
        "prterun was unable to launch the specified application as it could not\n"
        "access an executable:\n\n   Executable: /nosuch/prog\n",
        "file system that all hosts share",
    ),
    (
        "A daemon failed to report back after being spawned. This could\n"
        "be due to several factors\n",
        "allow TCP between the hosts",
    ),
    ("PRTE has lost communication with a remote daemon.\n", "--elastic"),
    (
        'The application appears to have been direct launched using "srun",\n'
        "but OMPI was not built with SLURM's PMI support and therefore cannot\nexecute.\n",
        "start by mpirun",
    ),
    ("[n1:123] OPAL ERROR: Unreachable in file pmix3x_client.c at line 112\n", "srun --mpi=list"),
    ("PMI2_Init failed to intialize.  Return code: 14\n", "srun --mpi=list"),
    ("No components were able to be opened in the pml framework.\n", "unset OMPI_MCA_pml"),
    (
        "A requested component was not found, or was unable to be opened.  This\n"
        "means that this component is either not installed or is unable to be\n",
        "unset OMPI_MCA_pml",
    ),
    (
        "At least one pair of MPI processes are unable to reach each other for\n"
        "MPI communications.\n",
        "include tcp, sm and self",
    ),
    (
        "It appears as if there is not enough space for /dev/shm/sm_segment.n1.0 (the\n"
        "shared-memory backing file). It is likely that your MPI job will now either abort\n",
        "--shm-size=8g",
    ),
    ("[n1:123] Signal: Bus error (7)\n", "--shm-size=8g"),
    ("The OpenFabrics (openib) BTL failed to initialize while trying to\n", "ulimit -l unlimited"),
    (
        "ucp_context.c:969  UCX  WARN  network device 'mlx5_9:1' is not available, please use\n",
        "unset UCX_NET_DEVICES",
    ),
    (
        "ib_md.c:287  UCX  ERROR ibv_reg_mr(address=0x1, length=9) failed: Cannot allocate\n",
        "ulimit -l unlimited",
    ),
    (
        "select.c:629  UCX  ERROR   no active messages transport to <no debug data>: "
        "self/memory - Destination is unreachable\n",
        "unset UCX_TLS",
    ),
    (
        "[vm:15476] PMIX ERROR: PMIX_ERR_FILE_WRITE_FAILURE in file ptl_base_listener.c at line\n"
        "The PMIx server's listener thread failed to start. We cannot\ncontinue.\n",
        "set TMPDIR to a local folder with room",
    ),
    (
        "[vm:1] Impossible to open the file /scratch/ompi.1/pmix.vm.tool in write mode\n"
        "[vm:1] PMIX ERROR: PMIX_ERR_FILE_OPEN_FAILURE in file ptl_base_listener.c at line 244\n",
        "ulimit -n 4096",
    ),
    (
        "[vm:1] PRTE ERROR: Unknown error in file odls_default_module.c at line 579\n",
        "ulimit -u 65536",
    ),
    (
        "srun: error:  mpi/pmix_v4: init: (null) [0]: mpi_pmix.c:195: pmi/pmix: can not load PMIx "
        "library\nsrun: error: Invalid MPI type 'pmix', --mpi=list for acceptable types\n",
        "have libpmix installed",
    ),
    (
        "slurmstepd: error: st05 [0] pmixp_dmdx.c:320 [_dmdx_req] mpi/pmix: ERROR: Bad\n",
        "one installation",
    ),
    (
        "[n1:3972318] PMIX ERROR: OUT-OF-RESOURCE in file base/bfrop_base_unpack.c at line 750\n",
        "one installation",
    ),
    ("[n1:1] PMIX ERROR: ERROR in file gds_ds12_lock_pthread.c at line 169\n", "one installation"),
    (
        "[proxy:0@n1] HYDU_create_process (lib/utils/launch.c:73): execvp error on file train\n",
        "file system that all hosts share",
    ),
    (
        "[proxy:0@n1] HYDU_sock_connect (lib/utils/sock.c:145): unable to connect from\n",
        "allow TCP between the hosts",
    ),
    ("MPIDI_OFI_init_local: OFI addrinfo() failed (ofi_init.c:1)\n", "FI_PROVIDER=tcp"),
    ("srun: error: Invalid MPI type 'pmix', --mpi=list for acceptable types\n", "start by mpirun"),
    (
        "srun: error: Unable to create step for job 7: More processors requested than permitted\n",
        "--ntasks",
    ),
    ("slurmd: error: Munge decode failed: Rewound credential\n", "munge.key"),
    ("python: /lib/libc.so.6: version `GLIBC_2.38' not found\n", "build it there"),
    ("prted: error while loading shared libraries: libpmix.so.2: cannot\n", "LD_LIBRARY_PATH"),
    ("mkdir: cannot create directory: No space left on device\n", "TMPDIR"),
]


@pytest.mark.parametrize("message, words", PLANTED)
def test_known_messages(message, words):
    sentence = explain(b"Some line before.\n" + message.encode() + b"Some line after.\n")
    assert words in sentence.partition(": ")[2]


def test_each_pattern_has_a_message():
    found = {explain(message.encode()) for message, _ in PLANTED}
    assert {f"{cause}: {remedy}" for _, cause, remedy in KNOWN} == found


@pytest.mark.parametrize("text", [b"", b"Traceback (most recent call last):\nValueError: 3\n"])
def test_other_output_has_no_explanation(text):
    assert explain(text) == ""


def own_lines(words, tmp_path, starter):
    """What the launcher itself says when such an mpirun fails."""
    path = tmp_path / "mpirun"
    path.write_text(f"#!/bin/sh\n{words}\n")
    result = run_with_mpirun(path, starter)
    assert result.returncode != 0
    return [x for x in result.stderr.splitlines() if x.startswith("mpchain-launch: ")]


@pytest.mark.parametrize("starter", ["OpenMpi", "Srun"])
def test_a_job_that_fails_at_start(starter, tmp_path):
    words = "echo \"srun: error: Invalid MPI type 'pmix'\" >&2; exit 1"
    cause, verdict = own_lines(words, tmp_path, starter)
    assert cause.startswith("mpchain-launch: Slurm lacks the plug-in")
    assert cause.endswith("srun --mpi=list shows the plug-ins")
    assert verdict == "mpchain-launch: mpirun ended with exit code 1"


def test_a_job_that_fails_for_an_unknown_reason(tmp_path):
    assert len(own_lines("echo 'Something else.'; exit 1", tmp_path, "OpenMpi")) == 1
