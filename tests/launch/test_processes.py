import os
import sys

from launch import processes

# The program starts a child, and a daemon that leaves its session and its parent, kills the daemon,
# and prints which of the two processes still run.
DAEMON = """
import os, sys, time
from launch.processes import *
adopt_orphans()
spared = os.fork()
if not spared:
    time.sleep(60)  # hangs until it is killed
    os._exit(0)
reader, writer = os.pipe()
if not os.fork():
    os.setsid()
    daemon = os.fork()
    if daemon:
        os.write(writer, str(daemon).encode())
        os._exit(0)
    time.sleep(60)  # hangs until it is killed
daemon = int(os.read(reader, 100))
os.wait()
kill_descendants(spared={spared})
print(daemon in descendants(os.getpid()), spared in descendants(os.getpid()))
kill_descendants()
print(collect_children())
"""

PARENT = """
import os, sys
from launch.processes import spawn
# The process hangs until it is killed.
print(spawn([sys.executable, "-c", "import time; time.sleep(60)"], os.environ, 1, 2), flush=True)
sys.stdin.read()
"""


def test_daemons_are_killed_and_others_spared(run):
    code, output, errors = run(command=("-c", DAEMON))
    assert (code, errors) == (0, "")
    assert output.splitlines() == ["False True", "({}, False)"]


def test_process_ends_with_its_parent(start, has_ended):
    launched = start(command=("-c", PARENT))
    (child,) = launched.read_lines(1)
    launched.process.kill()
    assert has_ended(int(child))


def test_program_that_cannot_be_started():
    reader, writer = os.pipe()
    child = processes.spawn(["/missing/program"], {}, writer, writer)
    os.close(writer)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 127
    assert os.read(reader, 100) == b"/missing/program: No such file or directory\n"
    os.close(reader)


def test_environment_and_input_of_a_program():
    reader, writer = os.pipe()
    code = (
        "import os, sys; print(os.environ['A'], repr(sys.stdin.read()), os.getsid(0), os.getpid())"
    )
    child = processes.spawn([sys.executable, "-c", code], {"A": "ä"}, writer, writer)
    os.close(writer)
    os.waitpid(child, 0)
    assert os.read(reader, 1000).decode().split() == ["ä", "''", str(child), str(child)]
    os.close(reader)


def test_shell_code():
    assert [processes.shell_code(code) for code in (0, 3, -9)] == [0, 3, 137]


def test_closed_standard_output_gets_no_files(run):
    code = """
import os, sys
from launch.processes import fill_standard_files
os.close(1)
fill_standard_files()
print(os.open("/dev/zero", os.O_RDONLY) > 2, os.readlink("/proc/self/fd/1"), file=sys.stderr)
"""
    assert run(command=("-c", code)) == (0, "", "True /dev/null\n")
