"""Tests that messages of MPI libraries at a failed start are explained, with a remedy."""

import pathlib
import re

import pytest

from launch import mpirun
from launch.known_failures import KNOWN, explain
from tests.launch.imitated_mpirun import run_with_mpirun

FOUND = mpirun.find()
HELP = pathlib.Path(FOUND.path).parents[1] / "share" if FOUND and FOUND.path else None
if HELP and not (HELP / "prte/help-prun.txt").is_file():
    HELP = None

# Each row has the source of a message, the message, and words of the remedy. A text below Open
# MPI's share/ is compared with the installed text. Messages marked (here) were printed by the
# named library, or by Slurm, in an environment that was broken on purpose. Other messages are
# quoted from the named text, issue or page.
UCX, DEBIAN = "UCX 1.20 (here)", "Open MPI 4.1.4 of Debian, {}"
PLANTED = [
    (
        "prte/help-prte-rmaps-base.txt",
        "There are not enough slots available in the system to satisfy the 99\n"
        "slots that were requested by the application:\n",
        "--oversubscribe",
    ),
    (
        "Open MPI 5.0.11 (here)",
        "prterun has detected an attempt to run as root.\n",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
    ),
    (
        "Open MPI 5.0.11 (here)",
        "ssh: Could not resolve hostname nosuchhost: Name or service not known\n"
        "A daemon failed to report back after being spawned. This could\n"
        "be due to several factors, including inability to find the\ndaemon executable\n",
        "correct --hosts",
    ),
    ("OpenSSH 9.2", "Host key verification failed.\n", "accept the key"),
    ("OpenSSH 9.2", "me@b: Permission denied (publickey,password).\n", "ssh-copy-id"),
    (
        "prte/help-prun.txt",
        "prterun was unable to find the specified executable file, and therefore did\n"
        "not launch the job.  This error was first reported for process rank\n",
        "file system that all hosts share",
    ),
    (
        "prte/help-prun.txt",
        "prterun was unable to launch the specified application as it could not\n"
        "access an executable:\n\n   Executable: /nosuch/prog\n",
        "file system that all hosts share",
    ),
    (
        "Open MPI 5.0.11 (here)",
        "A daemon failed to report back after being spawned. This could\n"
        "be due to several factors, including inability to find the\ndaemon executable\n",
        "allow TCP between the hosts",
    ),
    (
        "prte/help-errmgr-base.txt",
        "PRTE has lost communication with a remote daemon.\n",
        "--elastic",
    ),
    (
        "prte/help-ess-base.txt",
        'The application appears to have been direct launched using "srun",\n'
        "but OMPI was not built with SLURM's PMI support and therefore cannot\n",
        "start by mpirun",
    ),
    (
        "prte/help-ess-base.txt",
        "but OMPI was not built with SLURM support. This usually happens\n",
        "start by mpirun",
    ),
    (
        "NVIDIA's notes on TensorRT-LLM, and other pages",
        "[n1:123] OPAL ERROR: Unreachable in file pmix3x_client.c at line 111\n",
        "srun --mpi=list",
    ),
    (
        "pages on Open MPI 4.1 in an allocation of Slurm 26.05 with PMIx 5",
        "[n1:123] OPAL ERROR: Unreachable in file ext3x_client.c at line 111\n",
        "srun --mpi=list",
    ),
    (
        "notes of mlr3resampling",
        "[c4-n43:2139761] OPAL ERROR: Not initialized in file ext2x_client.c at line 112\n",
        "srun --mpi=list",
    ),
    (
        DEBIAN.format("help-pmix-base.txt"),
        "PMI2_Init failed to intialize.  Return code: 14\n",
        "srun --mpi=list",
    ),
    (
        "openmpi/help-mpi-runtime.txt",
        "No PMIx server was reachable, but a PMI1/2 was detected.\n"
        "If srun is being used to launch application,  2 singletons will be started.\n",
        "or srun --mpi=pmix",
    ),
    (
        "Open MPI 5.0.11 by Slurm 22.05's srun --mpi=pmi2 (here)",
        "Sorry!  You were supposed to get help about:\n    no-pmix-but\nfrom the file:\n",
        "or srun --mpi=pmix",
    ),
    (
        "openmpi/help-mca-base.txt",
        "No components were able to be opened in the pml framework.\n",
        "unset OMPI_MCA_pml",
    ),
    (
        "openmpi/help-mca-base.txt",
        "A requested component was not found, or was unable to be opened.  This\n"
        "means that this component is either not installed or is unable to be\n",
        "unset OMPI_MCA_pml",
    ),
    (
        "openmpi/help-mca-bml-r2.txt",
        "At least one pair of MPI processes are unable to reach each other for\n"
        "MPI communications.  This means that no Open MPI device has indicated\n",
        "include tcp, sm and self",
    ),
    (
        "openmpi/help-opal-shmem-mmap.txt",
        "It appears as if there is not enough space for /dev/shm/sm_segment.vm.0.4ac80001.1 "
        "(the shared-memory backing\n"
        "file). It is likely that your MPI job will now either abort or experience\n",
        "--shm-size=8g",
    ),
    (
        "Open MPI 5.0.11, full /dev/shm (here)",
        "It appears as if there is not enough space for /dev/shm/sm_segment.vm.0.4ac80001.1 "
        "(the shared-memory backing\nfile).\n  Space Available: 1048576 B\n"
        "At least one pair of MPI processes are unable to reach each other for\n",
        "--shm-size=8g",
    ),
    ("Open MPI's handler of signals", "[n1:123] Signal: Bus error (7)\n", "--shm-size=8g"),
    (
        DEBIAN.format("help-mpi-btl-openib.txt"),
        "The OpenFabrics (openib) BTL failed to initialize while trying to\n"
        "allocate some locked memory.  This typically can indicate that the\n",
        "ulimit -l unlimited",
    ),
    (
        DEBIAN.format("help-mpi-btl-openib.txt"),
        "The OpenFabrics (openib) BTL failed to initialize while trying to\n"
        "create an internal queue.  This typically indicates a failed\n",
        "OMPI_MCA_btl=^openib",
    ),
    (
        UCX,
        "[1795713277.369986] [vm:3181 :0]     ucp_context.c:1381 UCX  WARN  network device "
        "'mlx5_9:1' is not available, please use one or more of: 'eth0'(tcp), 'lo'(tcp)\n"
        "No components were able to be opened in the pml framework.\n",
        "unset UCX_NET_DEVICES",
    ),
    (
        UCX,
        "No components were able to be opened in the pml framework.\n"
        "[1795713283.944987] [vm:3244 :0]     ucp_context.c:1643 UCX  ERROR no usable "
        "transports/devices (asked rc on all devices)\n",
        "unset UCX_TLS",
    ),
    (
        UCX,
        "[1795713279.704515] [vm:3204 :0]          select.c:657  UCX  ERROR   no active messages "
        "transport to <no debug data>: self/memory - iface id and iface address differ\n",
        "unset UCX_TLS",
    ),
    (
        "a page on CMAQ",
        "[1650121445.321789] [cpn3286:242769:0]          select.c:514  UCX  ERROR   no active "
        "messages transport to <no debug data>: posix/memory - Destination is unreachable\n",
        "unset UCX_TLS",
    ),
    (
        "the errors of the cluster Magi",
        "[1765653660.705652] [magi175:640743:0] ib_md.c:287 UCX ERROR ibv_reg_mr(address="
        "0x15213b956010, length=65536, access=0xf) failed: Cannot allocate memory : Please set max "
        "locked memory (ulimit -l) to 'unlimited' (current: 524288 kbytes)\n",
        "ulimit -l unlimited",
    ),
    (
        "ib_md.c of older UCX",
        "ib_md.c:329  UCX  ERROR ibv_exp_reg_mr(address=0x2b8, length=9, access=0xf) failed: "
        "Cannot allocate memory\n",
        "ulimit -l unlimited",
    ),
    (
        "Open MPI 5.0.11, full /tmp (here)",
        "[vm:15476] PMIX ERROR: PMIX_ERR_FILE_WRITE_FAILURE in file ptl_base_listener.c at line\n"
        "The PMIx server's listener thread failed to start. We cannot\ncontinue.\n",
        "set TMPDIR to a local folder with space",
    ),
    (
        "Open MPI 5.0.11, read-only /tmp (here)",
        "PMIx detected a call to mkdir was unable to create the desired directory:\n\n"
        "  Directory: /scratch/ompi.11781\n  Error:     Read-only file system\n",
        "a read-only root",
    ),
    (
        "Open MPI 5.0.11 (here)",
        "[vm:1] Impossible to open the file /scratch/ompi.1/pmix.vm.tool in write mode\n"
        "[vm:1] PMIX ERROR: PMIX_ERR_FILE_OPEN_FAILURE in file ptl_base_listener.c at line 244\n",
        "ulimit -n 4096",
    ),
    (
        "openpmix/openpmix issue 2988",
        "Impossible to open the file /scratch/pmix.sched.saturn in write mode\n"
        "PMIX ERROR: FILE_OPEN_FAILURE in file ptl_base_listener.c at line 260\n",
        "TMPDIR to a local folder that you can write",
    ),
    (
        "Open MPI 5.0.11, ulimit -n 24 (here)",
        "[vm:11854] PMIX ERROR: PMIX_ERR_SYS_LIMITS_PIPES in file iof_base_setup.c at line 130\n"
        "[vm:11854] PRTE ERROR: Unknown error in file odls_base_default_fns.c at line 1594\n",
        "ulimit -n 4096",
    ),
    (
        "openpmix/openpmix issue 1513",
        "PMIX ERROR: OUT-OF-RESOURCE in file src/server/pmix_server_listener.c at line 273\n",
        "ulimit -n 4096",
    ),
    (
        "Open MPI 5.0.11, ulimit -u (here)",
        "[vm:1] PRTE ERROR: Unknown error in file odls_default_module.c at line 579\n",
        "ulimit -u 65536",
    ),
    (
        "Slurm 22.05 of Debian (here)",
        "srun: error:  mpi/pmix_v4: init: (null) [0]: mpi_pmix.c:195: pmi/pmix: can not load PMIx "
        "library\nsrun: error: Invalid MPI type 'pmix', --mpi=list for acceptable types\n",
        "have libpmix of its version installed",
    ),
    (
        "Slurm's mpi_pmix.c",
        "slurmd: error:  mpi/pmix_v4: init: (null) [0]: mpi_pmix.c:190: pmi/pmix: incorrect PMIx "
        "library version loaded 3 was loaded, required 4 version\n",
        "have libpmix of its version installed",
    ),
    (
        "openpmix/openpmix issue 1747",
        "PMIX ERROR: ERROR in file dstore_segment.c at line 207\n"
        "PMIX ERROR: OUT-OF-RESOURCE in file dstore_base.c at line 661\n",
        "PMIX_MCA_gds=hash",
    ),
    (
        "open-mpi/ompi issue 7516",
        "[n1:35779] PMIX ERROR: ERROR in file gds_ds12_lock_pthread.c at line 206\n",
        "PMIX_MCA_gds=hash",
    ),
    (
        "openpmix/openpmix issue 1484",
        "slurmstepd: error: st05 [0] pmixp_dmdx.c:320 [_dmdx_req] mpi/pmix: ERROR: Bad request "
        'from st06: nspace "slurm.pmix.801.0" has only 4 ranks, asked for -1\n',
        "one installation",
    ),
    (
        "openpmix/openpmix issue 3320",
        "slurmstepd: error: mpi/pmix_v5: _dmdx_req: owl1 [0]: pmixp_dmdx.c:319: Bad request from "
        'owl2: nspace "slurm.pmix.5257.0" has only 2 ranks, asked for -1\n',
        "one installation",
    ),
    (
        "a page of LBL on containers of other versions of Open MPI",
        "[n0098.lr6:115220] PMIX ERROR: OUT-OF-RESOURCE in file client/pmix_client.c at line 225\n",
        "one installation",
    ),
    (
        "MPICH 5.0.2 (here)",
        "[proxy:0@vm] HYDU_create_process (/mpich-5.0.2/src/pm/hydra/lib/utils/launch.c:73): "
        "execvp error on file /nosuch/prog (No such file or directory)\n",
        "file system that all hosts share",
    ),
    (
        "a page on MPICH 3.3.2",
        "[proxy:0:1@client1] HYDU_sock_connect (utils/sock/sock.c:145): unable to connect from "
        '"client1" to "server" (No route to host)\n[proxy:0:1@client1] main '
        "(pm/pmiserv/pmip.c:183): unable to connect to server server at port 37471 (check for "
        "firewalls!)\n",
        "allow TCP between the hosts",
    ),
    (
        "MPICH 5.0.2 (here)",
        "MPIDI_OFI_init_local(665)..: \nMPIDI_OFI_find_provider(84): \n"
        "find_provider(132): OFI call getinfo failed (default nic=(n/a): No data available)\n",
        "unset FI_PROVIDER",
    ),
    (
        "pmodels/mpich issue 6547",
        "MPIDI_OFI_init_local(580): OFI fi_fabric failed (ofi_init.c:580:MPIDI_OFI_init_local:"
        "Invalid argument)\n",
        "unset FI_PROVIDER",
    ),
    (
        "pmodels/mpich issue 6612",
        "find_provider(170).........: OFI fi_getinfo() failure\n",
        "unset FI_PROVIDER",
    ),
    (
        "notes on Intel MPI 2019.5",
        "MPIDI_OFI_mpi_init_hook(986): OFI addrinfo() failed (ofi_init.c:986:"
        "MPIDI_OFI_mpi_init_hook:No data available)\n",
        "unset FI_PROVIDER",
    ),
    (
        "MPICH 4.0.2 of Debian, libmpich.so.12",
        "create_vni_context(2253).....: OFI endpoint open failed (ofi_init.c:2253:"
        "create_vni_context:Invalid argument)\n",
        "unset FI_PROVIDER",
    ),
    (
        "Slurm 22.05 of Debian (here)",
        "srun: error: Couldn't find the specified plugin name for mpi/nosuch looking at all files\n"
        "srun: error: cannot find mpi plugin for mpi/nosuch\n"
        "srun: error: Invalid MPI type 'nosuch', --mpi=list for acceptable types\n",
        "start by mpirun",
    ),
    (
        "Slurm 22.05 of Debian (here)",
        "srun: error: Unable to create step for job 4: More processors requested than permitted\n",
        "--ntasks",
    ),
    (
        "notes of mtSwirl",
        "srun: error: Unable to create step for job 21227175: Memory required by task is not "
        "available\n",
        "--mem",
    ),
    (
        "Slurm's auth_munge.so and libmunge of Debian",
        "slurmd: error: Munge decode failed: Rewound credential\n",
        "munge.key",
    ),
    (
        "Slurm's auth_munge.so and libmunge of Debian",
        "slurmctld: error: Munge decode failed: Invalid credential\n",
        "munge.key",
    ),
    (
        "SchedMD's libslurm of Debian",
        "slurm_unpack_received_msg: Protocol authentication error\n",
        "munge.key",
    ),
    (
        "Slurm 22.05 of Debian, whose hosts have different keys (here)",
        "srun: error: slurm_receive_msgs: [[b]:6818] failed: Zero Bytes were transmitted or "
        "received\nsrun: error: Application launch failed: Zero Bytes were transmitted or "
        "received\n",
        "munge.key",
    ),
    (
        "Slurm 22.05 of Debian, without munged (here)",
        'srun: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such '
        "file or directory (Did you start munged?)\n"
        "srun: error: Unable to allocate resources: Protocol authentication error\n",
        "start munged on all hosts",
    ),
    (
        "the GNU loader",
        "./x: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found (required by ./x)\n",
        "build it there",
    ),
    (
        "the GNU loader",
        "prted: error while loading shared libraries: libpmix.so.2: cannot open shared object "
        "file: No such file or directory\n",
        "LD_LIBRARY_PATH",
    ),
    (
        "the C library",
        "mkdir: cannot create directory '/scratch/x': No space left on device\n",
        "TMPDIR",
    ),
]


@pytest.mark.parametrize("source, message, words", PLANTED)
def test_known_messages(source, message, words):
    sentence = explain(b"Some line before.\n" + message.encode() + b"Some line after.\n")
    assert words in sentence.partition(": ")[2]


def test_each_pattern_has_a_message():
    found = {explain(message.encode()) for _, message, _ in PLANTED}
    assert {f"{cause}: {remedy}" for _, cause, remedy in KNOWN} == found


@pytest.mark.skipif(HELP is None, reason="needs Open MPI 5 with its texts, as in mpchain[mpi]")
@pytest.mark.parametrize(
    "source, message",
    [row[:2] for row in PLANTED if row[0].partition("/")[0] in ("prte", "openmpi")],
)
def test_messages_of_the_installed_library(source, message):
    """The library's text must contain each line; %s and %d match any text."""
    lines = set((HELP / source).read_text(errors="replace").splitlines())
    templates = [
        re.sub(r"%[lz]*[sdu]", ".*", re.escape(line).replace("\\ ", " "))
        for line in lines
        if line.strip("%s ")
    ]
    for line in filter(str.strip, message.splitlines()):
        assert any(re.fullmatch(f"{each}.*", line) for each in templates), line


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"Traceback (most recent call last):\nValueError: 3\n",
        b"HTTPError: 401 Invalid credential\n",
        b"OFI call tsend failed (default nic=tcp: Connection reset by peer)\n",
        b"UCX  ERROR ibv_reg_mr(address=0x1, length=9, access=0xf) failed: Invalid argument\n",
    ],
)
def test_other_output_has_no_explanation(text):
    assert explain(text) == ""


def own_lines(words, tmp_path, starter):
    """Returns what the launcher itself prints when an mpirun fails that runs these shell words."""
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
