"""Known messages of MPI libraries, PMIx, Slurm and UCX, with causes and remedies."""

import re

_DOCTOR = "mpchain-launch doctor --hosts ... compares the hosts"
_NO_PMI = (
    "this MPI library was built without PMI, or for an older PMIx than srun offers, so ranks "
    "cannot find each other",
    "start by mpirun (--mpi openmpi or --mpi mpich), or let srun use another plug-in: srun "
    "--mpi=list shows them",
)
_UNREACHABLE = (
    "mpirun cannot start its daemon on a host, or the daemon cannot connect back",
    "install the same MPI there, and allow TCP between the hosts on all ports; " + _DOCTOR,
)
_NO_TRANSPORT = (
    "no transport connects these ranks",
    "unset OMPI_MCA_btl and OMPI_MCA_pml, or let them include tcp, sm and self",
)
_NO_MEMORY = (
    "/dev/shm is full, or too small",
    "delete files of other jobs; in a container: docker run --shm-size=8g, or bind the host's",
)
_MUNGE = (
    "munge refuses a host whose clock or key differs",
    "set the clocks by NTP, and have the same munge.key on all hosts",
)
_SEGMENTS = (
    "PMIx cannot make its segments of shared memory",
    "set PMIX_MCA_gds=hash, and free /tmp and /dev/shm",
)
_MANY_FILES = (
    "mpirun is not allowed to open enough files and connections",
    "set ulimit -n 4096, also for ssh and the daemons of the batch system",
)
_LOCKED = (
    "the network adapter is not allowed to lock enough memory",
    "set ulimit -l unlimited for the daemons of the batch system and for ssh, on all hosts",
)

# Each row is the pattern of a message, the cause, and the remedy. The first match is used.
KNOWN = [
    # The messages of UCX come first, because failures of UCX cause failures of other libraries.
    (rb"max locked memory \(ulimit -l\)", *_LOCKED),
    (rb"ibv_\w+\([^\n]*failed: Cannot allocate memory", *_LOCKED),
    (rb"UCX +WARN +network device '[^']*' is not available", "UCX_NET_DEVICES names a network "
     "device that a host lacks", "unset UCX_NET_DEVICES; ucx_info -d shows the devices"),
    (rb"UCX +ERROR +no (?:usable|[^\n]{1,60}) transport", "UCX finds no transport for two ranks",
     "unset UCX_TLS, or let it include tcp, sm and self; ucx_info -d shows the devices"),
    # These messages are printed by Open MPI and its runtime PRRTE.
    (rb"not enough slots available", "the hosts have fewer slots than there are ranks", "give more "
     "hosts or slots (--hosts a:4,b:4), or --oversubscribe"),
    (rb"detected an attempt to run as root", "Open MPI refuses to run as root", "set "
     "OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1, as is usual in a container"),
    (rb"Could not resolve hostname", "a host name is unknown here", "correct --hosts, or add the "
     "host to /etc/hosts or to ~/.ssh/config"),
    (rb"Host key verification failed", "ssh does not know the key of a host", "run ssh HOST true "
     "once by hand, and accept the key"),
    (rb"Permission denied \((?:publickey|gssapi|password)", "ssh asks for a password", "make a key "
     "with ssh-keygen, and copy it by ssh-copy-id HOST"),
    (rb"unable to find the specified executable|could not\s+access an executable",
     "the program is missing on a host", "start on a file system that all hosts share; " + _DOCTOR),
    (rb"failed to report back after being spawned", *_UNREACHABLE),
    (rb"lost communication with a remote daemon", "a host, or the network to it, was lost", "check "
     "whether the host runs; --elastic continues without it"),
    (rb"OMPI was not built with SLURM", *_NO_PMI),
    (rb"OPAL ERROR: (?:Unreachable|Not initialized) in file \w*(?:pmix|ext)\w*_client", *_NO_PMI),
    (rb"PMI2_Init failed to in", *_NO_PMI),
    (rb"a PMI1/2 was detected|supposed to get help about:\s+no-pmix-but", "each process of srun is "
     "alone: Open MPI finds no PMIx", "start by mpirun (--mpi openmpi), or srun --mpi=pmix"),
    (rb"No components were able to be opened in the pml|requested component was not found",
     "OMPI_MCA_pml or OMPI_MCA_btl, or a parameter file, asks for a missing transport",
     "unset OMPI_MCA_pml and OMPI_MCA_btl; ompi_info | grep -E 'pml|btl' shows what there is"),
    (rb"not enough space for.{0,200}shared.memory backing", *_NO_MEMORY),
    (rb"Signal: Bus error", *_NO_MEMORY),
    (rb"processes are unable to reach each other", *_NO_TRANSPORT),
    (rb"OpenFabrics[^\n]*failed to initialize[^\n]*\s+allocate some locked memory", *_LOCKED),
    (rb"OpenFabrics \(openib\) BTL failed to", "Open MPI's old component for InfiniBand cannot use "
     "this adapter", "set OMPI_MCA_btl=^openib, or use an Open MPI with UCX"),
    # PMIx prints these if a folder is full or read-only, or if no more files can be opened.
    (rb"PMIX ERROR: (?:PMIX_ERR_)?FILE_WRITE_FAILURE", "the folder of temporary files is full, "
     "or read-only", "free /tmp, or set TMPDIR to a local folder with space"),
    (rb"call to mkdir was unable to create the desired directory", "mpirun cannot make "
     "folders in the folder of temporary files", "set TMPDIR to a local folder that you can "
     "write; in a container with a read-only root, bind one"),
    (rb"PMIX ERROR: (?:PMIX_ERR_)?FILE_OPEN_FAILURE", "mpirun cannot open files in the folder of "
     "temporary files", "set ulimit -n 4096, or TMPDIR to a local folder that you can write"),
    (rb"PMIX_ERR_SYS_LIMITS|sys-limit-|system limit on number of (?:network|pipes)", *_MANY_FILES),
    (rb"PMIX ERROR: OUT-OF-RESOURCE in file [^\n]*listener", *_MANY_FILES),
    (rb"odls_default_module\.c|fork\W[^\n]*Resource temporarily unavailable",
     "mpirun is not allowed to start enough processes",
     "set ulimit -u 65536, also for ssh and the daemons of the batch system"),
    (rb"can not load PMIx library|incorrect PMIx library version loaded",
     "Slurm's plug-in for PMIx lacks its library, or finds another version", "start by mpirun "
     "(--mpi openmpi), or have libpmix of its version installed where the plug-in looks for it"),
    (rb"PMIX ERROR: [A-Z-]+ in file [^\n]*(?:dstore|pmix_esh|gds_ds[0-9]+_lock)", *_SEGMENTS),
    # These messages come after all others of PMIx, because those are more specific.
    (rb"PMIX ERROR:|pmixp?_[a-z_]*dmdx",
     "the PMIx of mpirun or Slurm does not understand the PMIx of the MPI library",
     "use mpirun and the library from one installation, also in a container; within Slurm, try "
     "another plug-in of srun --mpi=list"),
    # These messages are printed by MPICH.
    (rb"HYDU_create_process.{0,200}execvp error", "the program is missing on a host", "start on a "
     "file system that all hosts share; " + _DOCTOR),
    (rb"HYDU_sock_connect|unable to connect from \"[^\"]*\" to \"", *_UNREACHABLE),
    (rb"OFI (?:call |fi_)?(?:addrinfo|getinfo|fabric|(?:open ?)?domain|endpoint)[( )open]* fail",
     "libfabric finds no network that MPICH can use",
     "unset FI_PROVIDER, or set it to tcp; fi_info shows what there is"),
    # These messages are printed by Slurm.
    (rb"[Ii]nvalid MPI type|cannot find mpi plugin|specified plugin name for mpi",
     "Slurm lacks the plug-in for MPI that srun --mpi names",
     "start by mpirun (--mpi openmpi or --mpi mpich); srun --mpi=list shows the plug-ins"),
    (rb"Unable to create step for job[^\n]*(?:More processors|busy|Memory|node config)",
     "the allocation has fewer tasks, or less memory, than the ranks need",
     "ask for more in sbatch (--ntasks, --mem), and end other steps of the job"),
    (rb"(?:decode failed|authentication error): (?:Rewound|Expired|Invalid) credential", *_MUNGE),
    (rb"Munge encode failed", "munge does not run on a host", "start munged on all hosts"),
    (rb"Protocol authentication error", *_MUNGE),
    (rb"Zero Bytes were transmitted or received", "a daemon of Slurm dropped a message, as it does "
     "if munge refuses a host whose clock or key differs", _MUNGE[1]),
    # These messages are printed by the system.
    (rb"version `GLIBC[A-Z]*_[0-9.]+' not found", "a library was built for a newer system than "
     "this host or container has", "build it there; in a container, leave the host's libraries "
     "out"),
    (rb"error while loading shared libraries", "a library is missing on a host", "load the same "
     "modules there, and set LD_LIBRARY_PATH in the job's script; " + _DOCTOR),
    (rb"No space left on device", "a file system is full", "free /tmp, /dev/shm and the folder of "
     "results, or set TMPDIR to a folder with space"),
]  # fmt: skip


def explain(output: bytes) -> str:
    """Returns the cause and remedy of a known message in the output of a failed job.

    Args:
        output: The output of mpirun, and of the rank that failed, as bytes.

    Returns:
        One sentence; an empty string if the output has no known message.

    Example:
        >>> explain(b"srun: error: Invalid MPI type 'pmi9', --mpi=list for acceptable types")[:51]
        'Slurm lacks the plug-in for MPI that srun --mpi nam'
        >>> explain(b"Hello")
        ''
    """
    for pattern, cause, remedy in KNOWN:
        if re.search(pattern, output, re.DOTALL):
            return f"{cause}: {remedy}"
    return ""
