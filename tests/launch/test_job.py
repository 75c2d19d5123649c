import importlib.util
import os
import re
import signal
import socket

import pytest

from launch import mpi_library, mpirun

pytestmark = [
    pytest.mark.skipif(mpirun.find() is None, reason="needs mpirun: pip install 'mpchain[mpi]'"),
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux"),
]
needs_mpi4py = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py: pip install 'mpchain[mpi]'"
)

# Ranks print the IDs of their process and of a helper in a separate session, then wait.
WAITING = """
    import os, signal, subprocess, sys, time

    helper = subprocess.Popen(["sleep", "60"], start_new_session=True)
    print(os.getpid(), helper.pid, flush=True)
    time.sleep(60)  # hangs until it is killed
"""
HERE = socket.gethostname()
RANK = "int(os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ['PMI_RANK'])"


def own_lines(errors):
    """Returns what the launcher itself prints about the end."""
    lines = [line for line in errors.splitlines() if line.startswith("mpchain-launch: ")]
    notes = ("running as root", "(oversubscribed)", "failed to start; trying again")
    return [line for line in lines if not any(note in line for note in notes)]


def verdict(errors):
    """Returns the last line, which must be the launcher's."""
    assert errors.splitlines()[-1] == own_lines(errors)[-1]
    return own_lines(errors)[-1].removeprefix("mpchain-launch: ")


def lines_of(rank, text):
    prefix = f"[{rank}] "
    return [line.removeprefix(prefix) for line in text.splitlines() if line.startswith(prefix)]


def wait_for_processes(launched, n):
    """Returns the IDs of all processes that `n` ranks of WAITING run."""
    lines = launched.read_lines(n)
    assert sorted(line.split()[0] for line in lines) == [f"[{rank}]" for rank in range(n)]
    return [int(word) for line in lines for word in line.split()[1:]]


def parent_of(process):
    with open(f"/proc/{process}/stat", encoding="utf-8") as file:
        return int(file.read().rpartition(")")[2].split()[1])


@needs_mpi4py
@pytest.mark.parametrize("n", [2, 3])
def test_world(run, script, n):
    path = script("""
        import sys
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        print(world.rank, "of", world.size, world.allreduce(world.rank))
        print("error of", world.rank, file=sys.stderr)
    """)
    code, output, errors = run("-n", n, path)
    assert code == 0
    ranks = range(n)
    assert sorted(output.splitlines()) == [f"[{r}] {r} of {n} {sum(ranks)}" for r in ranks]
    assert [lines_of(r, errors) for r in ranks] == [[f"error of {r}"] for r in ranks]
    assert own_lines(errors) == []


@needs_mpi4py
def test_raising_rank(run, script):
    path = script("""
        from mpi4py import MPI

        MPI.COMM_WORLD.Barrier()  # all ranks have begun
        if MPI.COMM_WORLD.rank == 1:
            raise ValueError("boom")
        MPI.COMM_WORLD.Barrier()
    """)
    code, output, errors = run("-n", 3, path)
    assert (code, output) == (1, "")
    first, *_ = [line for line in errors.splitlines() if not line.startswith("mpchain-launch")]
    assert first == "[1] Traceback (most recent call last):"
    # Frames of the code that starts the program are not shown.
    assert lines_of(1, errors)[1] == f'  File "{path}", line 6, in <module>'
    assert "ValueError: boom" in lines_of(1, errors)
    assert errors.count("Traceback") == 1
    assert f"  ranks 0, 2 on {HERE}: terminated by mpchain-launch" in errors
    assert re.fullmatch(
        rf"rank 1 of 3 on {HERE} (aborted the job|ended) with exit code 1 \(ValueError: boom\); "
        "the other ranks were ended",
        verdict(errors),
    )


@needs_mpi4py
def test_place_of_the_others(run, script):
    path = script("""
        from mpi4py import MPI

        def wait_for_all():
            MPI.COMM_WORLD.Barrier()

        MPI.COMM_WORLD.Barrier()  # all ranks have begun
        if MPI.COMM_WORLD.rank == 1:
            raise SystemExit(4)
        wait_for_all()
    """)
    code, _, errors = run("-n", 2, path)
    assert code == 4
    assert (
        f"rank 0 on {HERE}: terminated by mpchain-launch, at script.py:5 in wait_for_all" in errors
    )


@needs_mpi4py
@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("os._exit(0)", "rank 1 of 2 on {} ended first, with exit code 0 but without MPI_Finalize"),
        ("sys.exit()", "rank 1 had finished before; the other ranks were ended"),
    ],
)
def test_verdict_names_the_rank_that_left(run, script, end, words):
    path = script(f"""
        import os, sys, time
        from mpi4py import MPI

        rank = MPI.COMM_WORLD.rank
        MPI.COMM_WORLD.Barrier()
        if rank == 1:
            {end}
        time.sleep(2)  # rank 0 is still running when rank 1 ends
        sys.exit(5)
    """)
    code, _, errors = run("-n", 2, path)
    assert code != 0
    assert words.format(HERE) in verdict(errors)


@needs_mpi4py
def test_exit_code_of_a_rank_that_aborts(run, script):
    path = script("""
        import sys
        from mpi4py import MPI

        if MPI.COMM_WORLD.rank == 1:
            sys.exit(3)
    """)
    code, _, errors = run("-n", 2, path)
    assert code == 3
    assert f"rank 1 of 2 on {HERE}" in verdict(errors)
    assert "exit code 3" in verdict(errors)


def test_traceback_of_the_cause_comes_before_those_of_others(run, script, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # Rank 0 prints a traceback first, and fails first, but the traceback does not end it.
    path = script(f"""
        import os, sys, time, traceback

        if {RANK} == 0:
            try:
                raise OSError("connection lost")
            except OSError:
                traceback.print_exc()
            open({str(pipe)!r}, "w").close()
            time.sleep(60)  # hangs until it is killed
        open({str(pipe)!r}).read()
        raise ValueError("boom")
    """)
    code, _, errors = run("-n", 2, path)
    assert code == 1
    assert errors.index("[1] ValueError: boom") < errors.index("[0] Traceback")
    assert "[0] OSError: connection lost" in errors
    head = f"mpchain-launch: rank 1 of 2 on {HERE} ended with exit code 1; its last lines:"
    assert errors.splitlines()[errors.splitlines().index(head) + 1].startswith("[1] Traceback")
    assert verdict(errors) == (
        f"rank 1 of 2 on {HERE} ended with exit code 1 (ValueError: boom); "
        "the other ranks were ended"
    )


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ("os._exit(7)", 7, "ended with exit code 7"),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            137,
            "was killed by SIGKILL (signal 9)",
        ),
    ],
)
def test_rank_that_ends_without_a_word(run, script, tmp_path, end, code, words):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # Rank 1 ends after rank 0 has printed.
    last_words = f"""
    if {RANK} == 1:
        open({str(pipe)!r}).read()
        {end}
    open({str(pipe)!r}, "w").close()
    time.sleep(60)  # hangs until it is killed
"""
    path = script(WAITING.replace("    time.sleep(60)  # hangs until it is killed\n", last_words))
    returned, output, errors = run("-n", 2, path)
    # The kernel may not count memory kills.
    errors = errors.replace(", perhaps because memory ran out", "")
    assert returned == code
    assert verdict(errors) == f"rank 1 of 2 on {HERE} {words}; the other ranks were ended"
    # The last output is shown again, because nothing else explains the end of the rank.
    head, last_words, *_ = errors[
        errors.index(f"mpchain-launch: rank 1 of 2 on {HERE}") :
    ].splitlines()
    assert head.endswith(f"{words}; its last lines:")
    assert last_words in output.splitlines()
    assert f"rank 0 on {HERE}: terminated by mpchain-launch, at script.py:" in errors
    # Output before a sudden end is not lost, and no process remains.
    processes = [int(word) for rank in (0, 1) for word in lines_of(rank, output)[0].split()]
    assert len(processes) == 4
    assert not any(os.path.exists(f"/proc/{process}") for process in processes)


def test_last_lines_in_sight_are_not_repeated(run, script):
    path = script("import argparse; argparse.ArgumentParser().parse_args()")
    one_screen = ("sh", "-c", 'exec "$@" 2>&1', "sh")
    code, output, _ = run("-n", 2, path, "--modl", before=one_screen)
    assert code == 2
    assert "error: unrecognized arguments: --modl" in output
    assert all(output.count(f"[{rank}] usage:") <= 1 for rank in (0, 1))


def test_arguments_pass_untouched(run, script):
    path = script(f"import os, sys; print(ascii(sys.argv[1:])) if {RANK} == 0 else None")
    arguments = ["a b", "", "--", "-n", "3", "--prefix", "-m", "ü", "$HOME", "*", "'\"\\", "a\nb"]
    code, output, _ = run("-n", 2, path, *arguments)
    assert code == 0
    assert lines_of(0, output) == [ascii(arguments)]


def test_script_in_the_working_folder(run, script, tmp_path):
    folder = tmp_path / "with blank"
    folder.mkdir()
    script("import os, here; print(os.getcwd(), here.x)", "with blank/a b.py")
    script("x = 5", "with blank/here.py")
    code, output, _ = run("-n", 2, "a b.py", folder=folder)
    assert code == 0
    assert output.splitlines().count(f"[0] {folder} 5") == 1


def test_module(run, script):
    script("import sys; print(__name__, sys.argv[1:])", "task.py")
    code, output, _ = run("-n", 2, "-m", "task", "-m")
    assert code == 0
    assert sorted(output.splitlines()) == [f"[{rank}] __main__ ['-m']" for rank in (0, 1)]


@needs_mpi4py
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("module", [[], ["-m"]])
def test_module_called_mpi4py_in_the_working_folder(run, script, tmp_path, n, module):
    """The launcher runs the installed mpi4py."""
    script("print('a stranger', __name__)", "mpi4py.py")
    (tmp_path / "folder").mkdir()
    script("import sys; print('hello', 'mpi4py' in sys.modules)", "folder/task.py")
    name = "folder.task" if module else "folder/task.py"
    code, output, errors = run("-n", n, "--no-prefix", *module, name)
    assert (code, output, own_lines(errors)) == (0, "hello True\n" * n, [])


def test_no_prefix(run, script):
    code, output, _ = run("-n", 2, "--no-prefix", script("print('hello')"))
    assert (code, output) == (0, "hello\nhello\n")


@needs_mpi4py
def test_kind_of_mpi(run, script):
    kinds = {mpi_library.OPEN_MPI: "openmpi", mpi_library.MPICH: "mpich"}
    own = kinds.pop(mpirun.find().flavour)
    (other,) = kinds.values()
    path = script("print('hello')")
    assert run("-n", 2, "--no-prefix", "--mpi", own, path)[:2] == (0, "hello\nhello\n")
    code, _, errors = run("-n", 2, "--mpi", other, path)
    assert (code, errors.count("\n")) == (2, 1)
    assert f"--mpi {other} does not fit mpi4py, which loads" in errors


def test_one_rank_has_a_prefix_if_asked(run, script):
    path = script("print('hello')")
    assert run("-n", 1, path)[:2] == (0, "hello\n")
    assert run("-n", 1, "--prefix", path)[:2] == (0, "[0] hello\n")


def test_one_rank_without_mpirun(run, script):
    code = """
        import sys
        from launch import cli, mpirun

        mpirun.find = lambda kind, in_slurm: None
        sys.exit(cli.main())
    """
    path = script("import sys; print('hello', end=''); sys.exit(5)")
    launcher = script(code, "launcher.py")
    assert run("-n", 1, path, command=(launcher,)) == (
        5,
        "hello",
        "mpchain-launch: rank 0 of 1 ended with exit code 5\n",
    )


def test_input_is_empty_at_once(start, script):
    path = script("import sys; print(repr(sys.stdin.read()))")
    reader, writer = os.pipe()
    code, output, _ = start("-n", 2, path, stdin=reader).finish()
    os.close(reader)
    os.close(writer)
    assert (code, sorted(output.splitlines())) == (0, ["[0] ''", "[1] ''"])


@pytest.mark.long
def test_helper_that_goes_on_printing_does_not_keep_the_job(run, script):
    path = script("""
        import subprocess

        subprocess.Popen(["yes"], start_new_session=True)
        print("end")
        raise SystemExit(4)
    """)
    code, output, errors = run("-n", 1, path)
    assert code == 4
    # The line feed may come later, because unbuffered Python writes it separately.
    assert "end" in output
    assert own_lines(errors) == ["mpchain-launch: rank 0 of 1 ended with exit code 4"]


def test_much_output_arrives_whole(run, script):
    path = script("""
        import sys

        for i in range(20000):
            print(i, "x" * (i % 100))
            if i % 10 == 0:
                print(i, file=sys.stderr)
    """)
    code, output, errors = run("-n", 2, path)
    assert code == 0
    for rank in (0, 1):
        assert lines_of(rank, output) == [f"{i} {'x' * (i % 100)}" for i in range(20000)]
        assert lines_of(rank, errors) == [str(i) for i in range(0, 20000, 10)]


# The launcher reads slowly, and the ranks end with unread messages from it.
SLOW_READER = """
import sys, time
from launch import main, remote_rank
def show(rank, *arguments, old=remote_rank.Rank._show, **options):
    rank.ask(True)
    time.sleep(0.005)  # work that takes a while
    old(rank, *arguments, **options)
remote_rank.Rank._show = show
sys.exit(main())
"""


@pytest.mark.long
def test_much_output_arrives_whole_at_a_slow_reader(run, script):
    path = script("for i in range(20000): print(i, 'x' * 50)")
    code, output, errors = run("-n", 2, path, command=("-c", SLOW_READER))
    assert code == 0, errors
    for rank in (0, 1):
        assert lines_of(rank, output) == [f"{i} {'x' * 50}" for i in range(20000)]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_to_the_launcher(start, script, number, code):
    launched = start("-n", 2, script(WAITING))
    processes = wait_for_processes(launched, 2)
    launched.process.send_signal(number)
    returned, _, errors = launched.finish()
    assert returned == code
    assert own_lines(errors) == [f"mpchain-launch: the job was ended by {number.name}"]
    assert not any(os.path.exists(f"/proc/{process}") for process in processes)


def test_ranks_may_answer_a_signal(start, script):
    launched = start(
        "-n",
        2,
        script("""
            import signal, sys, time

            signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("saved")))
            print("ready", flush=True)
            time.sleep(60)  # hangs until it is killed
        """),
    )
    launched.read_lines(2)
    launched.process.terminate()
    code, output, _ = launched.finish()
    assert (code, sorted(output.splitlines())) == (143, ["[0] saved", "[1] saved"])


def test_signal_that_is_passed_on(start, script):
    path = script("""
        import signal, time

        def answer(number, frame):
            print(signal.Signals(number).name, flush=True)
            if number == signal.SIGUSR2:
                raise SystemExit

        signal.signal(signal.SIGUSR1, answer)
        signal.signal(signal.SIGUSR2, answer)
        print("ready", flush=True)
        while True:
            time.sleep(60)  # hangs until it is killed
    """)
    launched = start("-n", 2, path)
    launched.read_lines(2)
    launched.process.send_signal(signal.SIGUSR1)
    assert sorted(launched.read_lines(2)) == ["[0] SIGUSR1", "[1] SIGUSR1"]
    launched.process.send_signal(signal.SIGUSR2)
    code, output, errors = launched.finish()
    assert (code, sorted(output.splitlines())) == (0, ["[0] SIGUSR2", "[1] SIGUSR2"])
    assert own_lines(errors) == []


def test_ranks_that_ignore_signals(start, script):
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    print"
    launched = start("-n", 2, "--grace", 0.2, script(WAITING.replace("print", ignore)))
    processes = wait_for_processes(launched, 2)
    launched.process.terminate()
    assert launched.finish()[0] == 143
    assert not any(os.path.exists(f"/proc/{process}") for process in processes)


def test_second_signal_does_not_wait(start, script):
    answer = "signal.signal(signal.SIGTERM, lambda *_: print('told', flush=True))\n    print"
    launched = start("-n", 2, "--grace", 1000, script(WAITING.replace("print", answer)))
    processes = wait_for_processes(launched, 2)
    launched.process.terminate()
    launched.read_lines(2)
    launched.process.terminate()
    assert launched.finish()[0] == 143
    assert not any(os.path.exists(f"/proc/{process}") for process in processes)


def test_killed_rank_is_no_fault_of_pmix(start, script):
    """If the rank is killed within MPI_Init, mpirun prints PMIX ERROR, which is not the cause."""
    deed = f"""
        import os, signal, sys
        print("PMIX ERROR: UNREACHABLE in file x", file=sys.stderr, flush=True)
        if {RANK} == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        import time
        time.sleep(60)  # hangs until it is killed
    """
    code, _, errors = start("-n", 2, script(deed)).finish()
    assert code == 128 + signal.SIGKILL
    assert "does not understand the PMIx of" not in errors


def test_timeout(start, script):
    launched = start("-n", 2, "--timeout", 2, script(WAITING))
    wait_for_processes(launched, 2)
    code, _, errors = launched.finish()
    assert code == 124
    assert own_lines(errors) == [
        f"mpchain-launch:   ranks 0-1 on {HERE}: terminated by mpchain-launch, "
        "at script.py:6 in <module>",
        "mpchain-launch: the job exceeded --timeout and was terminated",
    ]


@pytest.mark.parametrize("n", [1, 2])
def test_killed_launcher_leaves_nobody(start, script, has_ended, n):
    launched = start("-n", n, "--prefix", script(WAITING))
    processes = wait_for_processes(launched, n)
    supervisors = [parent_of(process) for process in processes]
    guards = [parent_of(supervisor) for supervisor in supervisors]
    starters = [parent_of(guard) for guard in guards]
    launched.process.kill()
    everybody = {*processes, *supervisors, *guards, *starters} - {launched.process.pid}
    assert len(everybody) >= 4 * n + 1
    assert all(map(has_ended, everybody))


def test_killed_mpirun(start, script):
    launched = start("-n", 2, script(WAITING))
    processes = wait_for_processes(launched, 2)
    os.kill(launched.mpirun(), signal.SIGKILL)
    code, _, errors = launched.finish()
    assert code == 137
    assert "mpirun was killed by SIGKILL (signal 9)" in own_lines(errors)[-1]
    assert not any(os.path.exists(f"/proc/{process}") for process in processes)


@pytest.mark.long
def test_killed_guard(start, script):
    launched = start("-n", 2, script(WAITING))
    processes = wait_for_processes(launched, 2)
    guard = parent_of(parent_of(processes[0]))
    os.kill(guard, signal.SIGKILL)
    code, _, errors = launched.finish()
    assert code != 0
    assert f"of 2 on {HERE} was ended first" in verdict(errors)
    assert not any(os.path.exists(f"/proc/{process}") for process in processes)


def test_killed_supervisor(start, script):
    launched = start("-n", 2, script(WAITING))
    processes = wait_for_processes(launched, 2)
    os.kill(parent_of(processes[0]), signal.SIGKILL)
    code, _, errors = launched.finish()
    assert code == 137
    assert f"of 2 on {HERE} was lost: its supervisor was killed" in verdict(errors)
    assert not any(os.path.exists(f"/proc/{process}") for process in processes)


def test_reader_that_goes_away(start, script):
    launched = start("-n", 2, script("while True: print('x' * 1000)"))
    launched.read_lines(1)
    launched.process.stdout.close()
    errors = launched.process.stderr.read()
    assert launched.process.wait(60) == 141
    # A rank's supervisor may still report that it ended the rank.
    *before, last = own_lines(errors)
    assert all(line.endswith("terminated by mpchain-launch") for line in before)
    words = "the job was ended because its output could not be written: Broken pipe"
    assert last == f"mpchain-launch: {words}"


@pytest.mark.long
def test_reader_that_stops_stops_the_ranks(start, script, tmp_path):
    path = script(f"""
        import os

        for i in range(10**6):
            os.write(1, b"x" * 999 + b"\\n")
            if i == 20000:
                open({str(tmp_path / "too much")!r}, "w").close()
    """)
    launched = start("-n", 1, "--timeout", 2, "--grace", 0.1, path)
    launched.read_lines(1)
    assert launched.process.wait(60) == 124
    assert not (tmp_path / "too much").exists()


def test_nothing_of_mpchain_is_imported_by_the_ranks(run, script, tmp_path):
    package = tmp_path / "mpchain"
    package.mkdir()
    script("import os; print('imported', os.getpid(), flush=True)", "mpchain/__init__.py")
    (package / "launch").symlink_to(os.path.dirname(mpirun.__file__))
    path = script("print('hello')")
    code, output, _ = run("-n", 2, path, command=("-m", "mpchain.launch"))
    first, *rest = output.splitlines()
    assert code == 0
    assert first.startswith("imported ")
    assert sorted(rest) == ["[0] hello", "[1] hello"]


def test_log_files(run, script, tmp_path):
    path = script(f"""
        import os, sys

        print("text of", {RANK}, flush=True)
        print("error of", {RANK}, file=sys.stderr)
    """)
    code, output, _ = run("-n", 2, "--log-dir", tmp_path / "a" / "logs", path)
    assert code == 0
    assert sorted(output.splitlines()) == ["[0] text of 0", "[1] text of 1"]
    for rank in (0, 1):
        head, *lines = (tmp_path / "a" / "logs" / f"rank_{rank}.log").read_text().splitlines()
        assert head.startswith("mpchain-launch: start 1 of 2 ranks, ")
        assert sorted(lines) == [f"error of {rank}", f"text of {rank}"]


@needs_mpi4py
def test_stacks_are_in_the_log_files(run, script, tmp_path):
    path = script("""
        from mpi4py import MPI

        if MPI.COMM_WORLD.rank == 1:
            raise SystemExit(4)
        MPI.COMM_WORLD.Barrier()
    """)
    code, _, errors = run("-n", 2, "--log-dir", tmp_path, path)
    assert code == 4
    words = f"the output of each rank, and its stacks, are in {tmp_path}/rank_*.log"
    assert own_lines(errors)[-2] == f"mpchain-launch:   {words}"
    text = (tmp_path / "rank_0.log").read_text()
    assert "mpchain-launch: where this rank was:" in text
    assert f'File "{path}", line 6 in <module>' in text


@pytest.mark.parametrize("n", [1, 2])
def test_crash_shows_its_stack(run, script, n):
    path = script(f"""
        import ctypes, os, time

        if {n} == 1 or {RANK} == 1:
            ctypes.string_at(0)
        time.sleep(60)  # hangs until it is killed
    """)
    code, _, errors = run("-n", n, path)
    assert code == 139
    assert "Fatal Python error: Segmentation fault" in errors
    assert f'  File "{path}", line 5 in <module>' in errors
    end = "was killed by SIGSEGV (signal 11)"
    if n == 1:
        assert verdict(errors) == f"rank 0 of 1 {end}"
    else:
        assert verdict(errors).startswith(f"rank 1 of 2 on {HERE} {end} (Segmentation fault); the")


def test_environment_of_the_ranks(run, script):
    path = script("import os; print(os.environ['A'], 'MPCHAIN_LAUNCH' in os.environ)")
    code, output, _ = run("-n", 2, "--env", "A=a b", path)
    assert (code, sorted(output.splitlines())) == (0, [f"[{rank}] a b False" for rank in (0, 1)])


def test_processes_of_multiprocessing(run, script):
    """The processes read the main module again, which must be the user's, not the launcher's."""
    path = script("""
        import multiprocessing, os

        def square(x):
            return x * x

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(square, [3]))
    """)
    assert run("-n", 1, path)[:2] == (0, "[9]\n")
