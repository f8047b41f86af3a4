"""What instructions took on a core in RTL, and how often loops turned there.

A trace has a line for each instruction that retired: cycle, address and code (``twin/rtl/soc.h``). An instruction's
cycles are those since the one before it, so what it waited for is in them: its fetch, its data, a jump to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from benchmarks.worst_case.control_flow import Function, Instruction, Loop

TRAP: Final = "trap"
"""Where interrupts enter (start.S)."""
_LINE_BYTES: Final = 32
"""Of VexRiscv's instruction cache; the other core has none."""


@dataclass
class Seen:
    """``cycles``: the most of each address, in the first and in later turns of loops. ``turns``: the most runs of each
    loop's header for one entry, within tasks. ``tasks``: the most cycles of each function in question, from call to
    return. ``calls``: the most calls of the few functions that each function with such a limit has made."""

    cycles: tuple[dict[int, int], dict[int, int]] = field(default_factory=lambda: (defaultdict(int), defaultdict(int)))
    turns: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    tasks: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    calls: dict[int, int] = field(default_factory=lambda: defaultdict(int))


def read(trace: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cycles and addresses, of one length."""
    options = pa.csv.ReadOptions(column_names=["cycle", "address", "code"])
    parse = pa.csv.ParseOptions(delimiter=" ")
    types = {"cycle": pa.int64(), "address": pa.dictionary(pa.int32(), pa.string()), "code": pa.string()}
    table = pa.csv.read_csv(trace, options, parse, pa.csv.ConvertOptions(column_types=types))
    address = table["address"].unify_dictionaries().combine_chunks()
    if isinstance(address, pa.ChunkedArray):
        address = address.chunk(0)
    known = np.array([int(word, 16) for word in address.dictionary.to_pylist()], dtype=np.int64)
    return table["cycle"].to_numpy(), known[address.indices.to_numpy()]


@dataclass
class _Frame:
    """A function that runs since a cycle, and the loops it is in, from the outermost, each with the runs of its
    header. ``is_later``: its caller was in a later turn of a loop. ``of_task``: it belongs to a task."""

    function: Function
    began: int
    is_later: bool
    of_task: bool
    few_calls: int = 0
    loops: list[tuple[Loop, int]] = field(default_factory=list)

    @property
    def turns_again(self) -> bool:
        return self.is_later or any(runs > 1 for _, runs in self.loops)


@dataclass
class _Thread:
    """What runs until it is interrupted: functions, and the instruction that ended the last block."""

    frames: list[_Frame] = field(default_factory=list)
    last: Instruction | None = None


class Walk:
    """Follows traces through the image's functions and loops."""

    def __init__(
        self, functions: Iterable[Function], tasks: Collection[int], few: Mapping[int, Collection[int]]
    ) -> None:
        self._tasks, self._few = tasks, few
        self._functions = {block: one for one in functions for block in one.blocks}
        self.seen = Seen()

    def follow(self, trace: Path) -> None:
        """Adds a trace, from reset on."""
        cycles, addresses = read(trace)
        starts = np.flatnonzero(np.isin(addresses, np.fromiter(self._functions, dtype=np.int64)))
        threads, is_later = [_Thread()], [False]  # of what comes before the first block
        times, blocks = cycles[starts - 1].tolist(), addresses[starts].tolist()  # when the block before had ended
        for began, block in zip(times, blocks, strict=True):
            function = self._functions[block]
            if function.name == TRAP and block == function.entry:
                threads.append(_Thread())
            thread = threads[-1]
            self._enter(thread, function, block, began)
            if block == function.entry:
                self._count_few(thread.frames, block)
            self._turn(thread.frames[-1], block)
            thread.last = function.blocks[block].instructions[-1]
            is_later.append(thread.frames[-1].turns_again)
            if thread.last.name == "mret" and len(threads) > 1:
                threads.pop()
        lengths = np.diff(starts, prepend=0, append=len(addresses))
        self._add(np.diff(cycles, prepend=cycles[:1]), addresses, np.repeat(is_later, lengths))

    def _enter(self, thread: _Thread, function: Function, block: int, began: int) -> None:
        """Moves to the block's function: by a call, a return, a jump in its place, or not at all."""
        frames, last = thread.frames, thread.last.name if thread.last else ""
        if last == "ret" and frames:
            ended = frames.pop()
            if ended.function.entry in self._tasks:
                spent = began - ended.began
                self.seen.tasks[ended.function.entry] = max(self.seen.tasks[ended.function.entry], spent)
        elif last in {"jal", "jalr"} and block == function.entry:
            frames.append(self._called(function, began, frames[-1] if frames else None))
        elif frames and frames[-1].function is not function and block == function.entry:
            frames.append(self._called(function, began, frames.pop()))
        if not frames:
            frames.append(self._called(function, began, None))
        if frames[-1].function is not function:
            raise ValueError(f"{block:x} in {function.name} runs after {last} in {frames[-1].function.name}")

    def _called(self, function: Function, began: int, by: _Frame | None) -> _Frame:
        of_task = function.entry in self._tasks or (by is not None and by.of_task)
        return _Frame(function, began, by is not None and by.turns_again, of_task)

    def _count_few(self, frames: list[_Frame], entry: int) -> None:
        for frame in frames:
            limited = frame.function.entry
            if entry in self._few.get(limited, ()):
                frame.few_calls += 1
                self.seen.calls[limited] = max(self.seen.calls[limited], frame.few_calls)

    def _turn(self, frame: _Frame, block: int) -> None:
        while frame.loops and block not in frame.loops[-1][0].body:
            frame.loops.pop()
        if frame.loops and block in frame.loops[-1][0].headers:
            loop, runs = frame.loops.pop()
            frame.loops.append((loop, runs + 1))
            self._count(frame, loop, runs + 1)
        around = frame.loops[-1][0].inner if frame.loops else frame.function.loops
        for loop in _loops_at(block, around):
            frame.loops.append((loop, 1))
            self._count(frame, loop, 1)

    def _count(self, frame: _Frame, loop: Loop, runs: int) -> None:
        if frame.of_task:
            self.seen.turns[loop.key] = max(self.seen.turns[loop.key], runs)

    def _add(self, spent: NDArray[np.int64], addresses: NDArray[np.int64], is_later: NDArray[np.bool_]) -> None:
        for later in (False, True):
            places, inverse = np.unique(addresses[is_later == later], return_inverse=True)
            most = np.zeros(len(places), dtype=np.int64)
            np.maximum.at(most, inverse, spent[is_later == later])
            known = self.seen.cycles[later]
            for place, cycle in zip(places.tolist(), most.tolist(), strict=True):
                known[place] = max(known[place], cycle)


def _loops_at(block: int, loops: list[Loop]) -> Iterator[Loop]:
    """Those of these loops, and of the loops in them, that the block is in; from the outermost."""
    for loop in loops:
        if block in loop.body:
            yield loop
            yield from _loops_at(block, loop.inner)


# ---- costs


def costs(functions: Iterable[Function], seen: Seen) -> Mapping[tuple[int, bool], int]:
    """Cycles of each instruction in a first and in a later turn: the most seen at its address in such a turn, else the
    most seen there in the other, else the most of its kind."""
    kinds: dict[tuple[str, bool], int] = defaultdict(int)
    code = [
        (one, _kind(one, block.first)) for f in functions for block in f.blocks.values() for one in block.instructions
    ]
    for one, kind in code:
        for later in (False, True):
            kinds[kind] = max(kinds[kind], seen.cycles[later].get(one.address, 0))
    found = {}
    for one, kind in code:
        for later in (False, True):
            cycles = seen.cycles[later].get(one.address) or seen.cycles[not later].get(one.address)
            found[one.address, later] = cycles if cycles is not None else kinds[kind] or max(kinds.values())
    return found


def _kind(one: Instruction, first: int) -> tuple[str, bool]:
    """Its name, and whether it may have waited for its fetch: it begins a block, or a line of the cache."""
    return one.name, one.address == first or one.address % _LINE_BYTES < 4
