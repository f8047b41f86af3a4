"""Functions, basic blocks and loops of an rv32 image, from the disassembly.

Loops nest as Havlak (1997) has it, so that those count too that the compiler gave a second entry.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

OBJDUMP: Final = "riscv64-unknown-elf-objdump"

_FUNCTION = re.compile(r"^([0-9a-f]{8}) <([\w.]+)>:$")
_INSTRUCTION = re.compile(r"^([0-9a-f]{8}):\t(\S+)(?:\t(.*))?$")


@dataclass(frozen=True)
class Instruction:
    """``target``: where a jump or branch goes to, if that is written in it."""

    address: int
    name: str
    target: int | None

    @property
    def is_branch(self) -> bool:
        return self.name.startswith("b")

    @property
    def ends_block(self) -> bool:
        return self.is_branch or self.name in {"j", "jal", "jalr", "jr", "ret", "mret", "ebreak"}

    @property
    def is_pointer_call(self) -> bool:
        return self.name in {"jalr", "jr"}


@dataclass
class Block:
    """Instructions that run one after the other. Calls end a block: ``callees`` are the entries of what it may call,
    ``calls_pointer`` says that any function whose address is taken may be among them."""

    instructions: list[Instruction]
    successors: list[int] = field(default_factory=list)
    callees: list[int] = field(default_factory=list)
    calls_pointer: bool = False

    @property
    def first(self) -> int:
        return self.instructions[0].address


@dataclass(eq=False)
class Loop:
    """Blocks that can run again and again. Each turn begins at a header, of which there is mostly one, and ends at one
    of ``ends``, which lead to a header again. ``entries``: where the loop can be entered. ``body`` has all inner
    loops."""

    headers: frozenset[int]
    body: frozenset[int]
    entries: frozenset[int]
    ends: list[int]
    inner: list[Loop]

    @property
    def key(self) -> int:
        """No other loop has it."""
        return min(self.headers)


@dataclass(eq=False)
class Function:
    """``blocks`` by their first address; a block without successors ends the function."""

    name: str
    entry: int
    blocks: dict[int, Block]

    @cached_property
    def loops(self) -> list[Loop]:
        """Those that are in no other loop."""
        return _loops(self, frozenset(self.blocks), frozenset())

    @cached_property
    def all_loops(self) -> list[Loop]:
        found: list[Loop] = []
        rest = list(self.loops)
        while rest:
            found.append(rest.pop())
            rest += found[-1].inner
        return found


def disassembled(image: Path) -> list[Function]:
    """All functions of the image's code, in order of address."""
    objects = {line.split()[-1] for line in _objdump("-t", image) if re.match(r"\S+ .{6}O", line)}
    return functions_in(_objdump("-d", "--no-show-raw-insn", "-j", ".text", image), objects)


def _objdump(*arguments: str | Path) -> list[str]:
    done = subprocess.run([OBJDUMP, *map(str, arguments)], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def functions_in(listing: Iterable[str], objects: Collection[str] = ()) -> list[Function]:
    """Of a listing of objdump; ``objects``: names of constants among the code."""
    code: list[tuple[str, int, list[Instruction]]] = []
    for line in listing:
        if match := _FUNCTION.match(line):
            code.append((match[2], int(match[1], 16), []))
        elif code and (match := _INSTRUCTION.match(line)):
            target = re.search(r"(?:^|,)([0-9a-f]{8}) <", match[3] or "")
            code[-1][2].append(Instruction(int(match[1], 16), match[2], int(target[1], 16) if target else None))
    functions = [_with_blocks(name, entry, body) for name, entry, body in code if name not in objects]
    _end_at_calls_without_return({one.entry: one for one in functions})
    return functions


def reachable(
    functions: Iterable[Function], roots: Iterable[int], pointed: Mapping[str, Collection[int]]
) -> dict[int, Function]:
    """What the roots may call, by entry. ``pointed``: what a call through a pointer may reach, by the caller's name;
    ``""``: any other caller."""
    known = {one.entry: one for one in functions}
    found: dict[int, Function] = {}
    rest = list(roots)
    while rest:
        entry = rest.pop()
        if entry in found:
            continue
        function = found[entry] = known[entry]
        for block in function.blocks.values():
            rest += pointed.get(function.name, pointed[""]) if block.calls_pointer else block.callees
    return found


def _with_blocks(name: str, entry: int, code: list[Instruction]) -> Function:
    inside = {one.address for one in code}
    leaders = {entry} | {one.target for one in code if one.ends_block and one.target in inside and one.target}
    blocks: dict[int, Block] = {}
    current: list[Instruction] = []
    for one, following in zip(code, [*code[1:], None], strict=True):
        current.append(one)
        if one.ends_block or following is None or following.address in leaders:
            blocks[current[0].address] = _block(current, following.address if following else None, inside)
            current = []
    return Function(name, entry, blocks)


def _block(code: list[Instruction], following: int | None, inside: Iterable[int]) -> Block:
    """A jump to another function, in its place, is a call after which this one ends."""
    block, last = Block(code), code[-1]
    falls_through = not last.ends_block or last.is_branch or last.name in {"jal", "jalr"}
    if last.ends_block and last.target is not None:
        if last.target in inside and last.name != "jal":
            block.successors.append(last.target)
        else:
            block.callees.append(last.target)
    block.calls_pointer = last.is_pointer_call
    if falls_through and following is not None:
        block.successors.append(following)
    return block


def _end_at_calls_without_return(functions: Mapping[int, Function]) -> None:
    """A call of a function that never returns ends the way: a job that restarts the image is none any more."""
    returning: set[int] = set()
    changed = True
    while changed:
        changed = False
        for function in functions.values():
            if function.entry not in returning and any(
                _returns(block, returning) for block in function.blocks.values()
            ):
                returning.add(function.entry)
                changed = True
    for function in functions.values():
        for block in function.blocks.values():
            if block.instructions[-1].name == "jal" and not returning.issuperset(block.callees):
                block.successors.clear()
                block.callees.clear()


def _returns(block: Block, returning: Collection[int]) -> bool:
    last = block.instructions[-1]
    is_in_place = last.name != "jal" and any(callee in returning for callee in block.callees)
    return last.name in {"ret", "mret", "jr"} or is_in_place


# ---- loops


def _loops(function: Function, region: frozenset[int], headers: frozenset[int]) -> list[Loop]:
    """The outermost loops among blocks of a region, edges to these headers left out."""

    def after(block: int) -> list[int]:
        return [one for one in function.blocks[block].successors if one in region and one not in headers]

    found = []
    for body in _components(region, after):
        if len(body) == 1 and not set(body) & set(after(next(iter(body)))):
            continue
        entries = _entries(function, body)
        loops = [_loop(function, body, entries, header, headers) for header in sorted(entries)]
        found.append(min(loops, key=lambda loop: sum(len(one.body) for one in loop.inner)))
    return found


def _loop(
    function: Function, body: frozenset[int], entries: frozenset[int], header: int, headers: frozenset[int]
) -> Loop:
    ends = [one for one in sorted(body) if header in function.blocks[one].successors]
    return Loop(frozenset({header}), body, entries, ends, _loops(function, body, headers | {header}))


def merged(function: Function, outer: Loop, inner: Loop) -> Loop:
    """One loop of two that the compiler has made of one of the source: a turn begins at a header of either."""
    headers = outer.headers | inner.headers
    ends = [one for one in sorted(outer.body) if not headers.isdisjoint(function.blocks[one].successors)]
    rest = [loop for loop in outer.inner if loop is not inner]
    return Loop(headers, outer.body, outer.entries, ends, rest + inner.inner)


def _entries(function: Function, body: frozenset[int]) -> frozenset[int]:
    entered = {function.entry} & body
    for first, block in function.blocks.items():
        if first not in body:
            entered |= body.intersection(block.successors)
    return frozenset(entered)


def _components(region: frozenset[int], after: Callable[[int], list[int]]) -> list[frozenset[int]]:
    """Strongly connected components (Tarjan, 1972)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    waiting: list[int] = []
    found: list[frozenset[int]] = []

    def visit(one: int) -> None:
        index[one] = low[one] = len(index)
        waiting.append(one)
        for other in after(one):
            if other not in index:
                visit(other)
                low[one] = min(low[one], low[other])
            elif other in waiting:
                low[one] = min(low[one], index[other])
        if low[one] == index[one]:
            place = waiting.index(one)
            found.append(frozenset(waiting[place:]))
            del waiting[place:]

    for one in sorted(region):
        if one not in index:
            visit(one)
    return found
