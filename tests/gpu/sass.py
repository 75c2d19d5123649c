"""Reads the machine code of kernels from NVIDIA's disassembler: loops, loads, calls, spills.

The wheel nvidia-cuda-nvdisasm contains the disassembler, which needs neither a GPU nor a driver.
"""

import functools
import importlib.metadata
import pathlib
import re
import stat
import subprocess
import tempfile
from typing import NamedTuple

REASON = "needs the disassembler of CUDA: pip install 'mpchain[gpu-test]'"
_LINE = re.compile(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_LABEL = re.compile(r"^(\.L\w+|[\w$]+):")
_REGISTER = re.compile(r"\bR(\d+)\b")


class Instruction(NamedTuple):
    """A machine instruction.

    Attributes:
        name: the name, such as ``LDG.E``.
        operands: the text of the operands; most instructions write the first operand.
    """

    name: str
    operands: str

    @property
    def is_load(self) -> bool:
        """Returns whether the instruction reads the memory of the GPU."""
        return self.name.startswith("LDG")

    @property
    def is_call(self) -> bool:
        """Returns whether the instruction calls a function; some calls are jumps to a label of the
        kernel."""
        return self.name.startswith("CALL") and "$" in self.operands

    def written(self) -> set:
        """Returns the registers that a load writes."""
        (first,) = _REGISTER.findall(self.operands.partition(",")[0])[:1] or ["-1"]
        width = 4 if ".128" in self.name else 2 if ".64" in self.name else 1
        return set(range(int(first), int(first) + width))

    def read(self) -> set:
        """Returns the registers that the instruction may read."""
        _, _, rest = self.operands.partition(",")
        is_store = self.name.startswith(("ST", "ISETP", "FSETP", "BRA"))
        return set(map(int, _REGISTER.findall(self.operands if is_store else rest)))


class Code(NamedTuple):
    """The machine code of a kernel.

    Attributes:
        instructions: the instructions in the order of the text.
        labels: maps each label to the number of the instruction after it.
    """

    instructions: list[Instruction]
    labels: dict[str, int]

    def loops(self) -> list[list[Instruction]]:
        """Returns the loops that contain no other loops."""
        found = []
        for i, instruction in enumerate(self.instructions):
            target = re.search(r"`\((\.L\w+)\)", instruction.operands)
            if instruction.name.startswith("BRA") and target:
                begin = self.labels.get(target[1], i + 1)
                if begin <= i:
                    found.append((begin, i + 1))
        inner = [
            (b, e)
            for b, e in found
            if not any(b <= c and d <= e and (b, e) != (c, d) for c, d in found)
        ]
        return [self.instructions[b:e] for b, e in sorted(set(inner))]

    def n_registers(self) -> int:
        """Returns the number of registers of a thread, from the highest register in the code."""
        named = (n for x in self.instructions for n in _REGISTER.findall(x.operands))
        return 1 + max(map(int, named))

    def n_spills(self) -> int:
        """Returns the number of instructions that use memory instead of registers."""
        return sum(x.name.startswith(("LDL", "STL")) for x in self.instructions)


def loads_before_use(loop: list[Instruction]) -> int:
    """Returns how many loads a loop begins before it uses the result of one of them.

    Example:
        >>> loop = [Instruction("LDG.E", "R2, [R8]"), Instruction("LDG.E", "R3, [R9]")]
        >>> loads_before_use([*loop, Instruction("FADD", "R4, R2, R3")])
        2
    """
    loaded, n = set(), 0
    for instruction in loop:
        if loaded & instruction.read():
            break
        if instruction.is_load:
            n += 1
            loaded |= instruction.written()
    return n


@functools.cache
def load():
    """Returns the path of the disassembler; None if it is not installed."""
    try:
        wheel = importlib.metadata.distribution("nvidia-cuda-nvdisasm")
    except importlib.metadata.PackageNotFoundError:
        return None
    path = pathlib.Path(str(wheel.locate_file("nvidia/cu13/bin/nvdisasm")))
    if not path.exists():
        return None
    if not path.stat().st_mode & stat.S_IXUSR:
        path.chmod(0o755)
    return path


def disassembled(binary: bytes) -> Code:
    """Returns the code of the only kernel in a binary that NVRTC made."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        text = subprocess.run(
            [load(), "-c", file.name], check=True, capture_output=True, text=True, timeout=60
        ).stdout
    return parsed(text)


def parsed(text: str) -> Code:
    """Returns the code in a text of the disassembler."""
    instructions, labels = [], {}
    for line in text.splitlines():
        if label := _LABEL.match(line.strip()):
            labels[label[1]] = len(instructions)
        elif found := _LINE.search(line):
            instructions.append(Instruction(found[1], found[2]))
    return Code(instructions, labels)
