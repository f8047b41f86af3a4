"""The most stack that the rv32 image can use: the compiler's frames (``-fstack-usage``) along the call graph.

The call graph is read from the disassembly. A call through a pointer may reach every function whose address is taken:
it stands in a table, or is loaded into a register. Interrupts do not nest, so the deepest trap comes once on top.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

TRAP_BYTES = 64
"""Saved by `trap` in start.S."""

ONLY = {"levels_changed": {"lower_early"}}
"""Functions with a pointer that can have but these values: `scmi_init` sets the one of `levels_changed`."""

_CALL = re.compile(r"\t(?:jal|jalr|j|tail|call|c\.j|c\.jal|beq\w*|bne\w*|bl\w+|bg\w+)\t.*?\b([0-9a-f]{8}) <([\w.]+)>$")
_FUNCTION = re.compile(r"^[0-9a-f]{8} <([\w.]+)>:$")


def frames(image: Path) -> dict[str, int]:
    """Bytes per function, from the files that the compiler wrote next to the image."""
    found: dict[str, int] = {}
    for file in image.parent.glob(f"{image.stem}*.su"):
        for line in file.read_text().splitlines():
            place, size, kind = line.split("\t")
            if kind != "static":
                raise ValueError(f"{place}: the frame's size is {kind}")
            name = place.rpartition(":")[2]
            found[name] = max(found.get(name, 0), int(size))
    return found


def calls(image: Path) -> tuple[dict[str, set[str]], set[str], dict[str, int]]:
    """Who jumps to whom; who calls through a pointer; what each function takes of the stack by its own instructions."""
    listing = _run("riscv64-unknown-elf-objdump", "-d", "--no-show-raw-insn", str(image))
    callees: dict[str, set[str]] = {}
    taken: dict[str, int] = {}
    indirect, name = set(), ""
    for line in listing.splitlines():
        if match := _FUNCTION.match(line):
            name = match[1]
            callees.setdefault(name, set())  # functions of two units may share a name: then both count
            taken.setdefault(name, 0)
        elif match := _CALL.search(line):
            if match[2] != name:
                callees[name].add(match[2])
        elif re.search(r"\t(?:jalr|jr)\t(?!ra$)", line) and "<" not in line:
            indirect.add(name)
        if match := re.search(r"\tadd\tsp,sp,-(\d+)", line):
            taken[name] += int(match[1])
    return callees, indirect, taken


def pointed_to(image: Path) -> set[str]:
    """Functions whose address stands in a constant, or is loaded into a register other than for a call."""
    symbols = [line.split() for line in _run("riscv64-unknown-elf-nm", str(image)).splitlines()]
    names = {int(address, 16): name for address, kind, name in symbols if kind in "tT"}
    found = set()
    dump = _run("riscv64-unknown-elf-objdump", "-s", "-j", ".text", str(image))  # there is no .data (link.ld)
    for line in dump.splitlines():
        for word in re.findall(r"\b[0-9a-f]{8}\b", line[:44].partition(" ")[2][9:]):
            found.add(int.from_bytes(bytes.fromhex(word), "little"))
    listing = _run("riscv64-unknown-elf-objdump", "-d", "--no-show-raw-insn", str(image))
    found |= {int(address, 16) for address in re.findall(r"# ([0-9a-f]{8}) <", listing)}
    return {names[address] for address in found if address in names}


def deepest(image: Path) -> tuple[int, list[str]]:
    """Bytes, and the chain of calls that needs them. Raises ``ValueError`` for recursion."""
    callees, indirect, taken = calls(image)
    compiled = frames(image)
    targets = pointed_to(image)
    sizes = {name: max(taken[name], compiled.get(name, 0)) for name in callees}

    def reach(name: str, path: tuple[str, ...]) -> tuple[int, list[str]]:
        if name in path:
            raise ValueError(f"recursion: {' > '.join((*path, name))}")
        below = callees[name] | (ONLY.get(name, targets) if name in indirect else set())
        best: tuple[int, list[str]] = (0, [])
        for other in sorted(below & callees.keys() - {"_start", "trap"}):
            best = max(best, known.get(other) or reach(other, (*path, name)), key=lambda found: found[0])
        known[name] = (sizes[name] + best[0], [name, *best[1]])
        return known[name]

    known: dict[str, tuple[int, list[str]]] = {}
    main, trap = reach("board_main", ()), reach("board_trap", ())
    return main[0] + TRAP_BYTES + trap[0], [*main[1], "trap", *trap[1]]


def reserved(image: Path) -> int:
    """The stack that link.ld reserves."""
    symbols: Mapping[str, int] = {
        line.split()[2]: int(line.split()[0], 16) for line in _run("riscv64-unknown-elf-nm", str(image)).splitlines()
    }
    return symbols["stack_top"] - symbols["stack_guard"]


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
