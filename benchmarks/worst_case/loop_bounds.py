"""How often each loop of the image turns at most, from its source: the header of a ``for`` that counts between two
constants, or else a comment on the loop's line, ``/* at most N times */``."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.worst_case.control_flow import Function, Loop, merged
from firmware_bridge.build_firmware import FIRMWARE, ROOT
from firmware_bridge.controlpulp import rv32

_ADDR2LINE: Final = "riscv64-unknown-elf-addr2line"
_FLAGS: Final = ("-march=rv32imc_zicsr", "-mabi=ilp32", "-std=c11", "-O2", "-ffreestanding", "-w", "-S", "-o", "-")
_FOR = re.compile(r"for \((?:\w+ )?(\w+) = ([^;]+); ([^;]+); (\w+)(\+\+| \+= ([^)]+))\)")
_COMMENT = re.compile(r"/\* at most (.+?) times")
_ADVICE: Final = "write /* at most N times */ on the loop's line"
_CONSTANT = re.compile(r"(?:sizeof\(struct \w+\)|[\w\s+*/()<-]|>>)+")
_LOOP = re.compile(r"\b(?:for|while) \(")


@dataclass(frozen=True, order=True)
class Line:
    """A line of a source file, counted from 1."""

    file: Path
    number: int

    @property
    def text(self) -> str:
        return self.file.read_text().splitlines()[self.number - 1].strip()


def of_loops(image: Path, functions: Iterable[Function]) -> dict[int, int]:
    """How often the headers of each loop run for each entry into it, by the loop's key. Loops that the compiler has
    made of one are merged. The image needs its debugging information. Raises ``ValueError`` with the place of a loop
    that has no bound."""
    functions = list(functions)
    loops = [(function, loop) for function in functions for loop in function.all_loops]
    places = lines_of(image, sorted({one for function, loop in loops for one in _tests(function, loop)}))
    for function in functions:
        function.loops = [_merged(function, loop, places) for loop in function.loops]
    loops = [(function, loop) for function in functions for loop in function.all_loops]
    written = [_line(function, loop, places) for function, loop in loops]
    times = most_times(sorted(set(written)))
    return {
        loop.key: times[line] + (not _is_tested_below(function, loop))
        for (function, loop), line in zip(loops, written, strict=True)
    }


def _merged(function: Function, loop: Loop, places: Mapping[int, Line | None]) -> Loop:
    own = _line(function, loop, places)
    while parts := [one for one in loop.inner if _line(function, one, places) == own]:
        loop = merged(function, loop, parts[0])
    inner = [_merged(function, one, places) for one in loop.inner]
    return Loop(loop.headers, loop.body, loop.entries, loop.ends, inner)


def _is_tested_below(function: Function, loop: Loop) -> bool:
    """Whether each turn ends with the test for the next: then the header runs once for each, and not once more."""
    return all(
        len(function.blocks[end].successors) > 1 and not set(function.blocks[end].successors) <= loop.body
        for end in loop.ends
    )


def _tests(function: Function, loop: Loop) -> list[int]:
    """Addresses of the instructions that leave the loop or turn it, those that turn it first."""
    leaving = [one for one in loop.body if not set(function.blocks[one].successors) <= loop.body]
    return [function.blocks[one].instructions[-1].address for one in (*loop.ends, *leaving)]


def _line(function: Function, loop: Loop, places: Mapping[int, Line | None]) -> Line:
    found = [line for one in _tests(function, loop) if (line := places[one])]
    for line in found:
        if _COMMENT.search(line.text) or _LOOP.search(line.text):
            return line
    for line in found:
        if around := _around(line):
            return around
    where = next((f"{line.file.name}:{line.number}: {line.text}" for line in found), f"{loop.key:#x}")
    raise ValueError(f"{function.name}: no line of source for the loop at {where}; {_ADVICE}")


def _around(line: Line) -> Line | None:
    """The loop whose body has this line, by the indentation."""
    text = line.file.read_text().splitlines()
    indent = _indent(text[line.number - 1])
    for number in range(line.number - 1, 0, -1):
        above = text[number - 1]
        if above.strip() and _indent(above) < indent:
            if _LOOP.search(above):
                return Line(line.file, number)
            indent = _indent(above)
        if indent == 0:
            break
    return None


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def lines_of(image: Path, addresses: Sequence[int]) -> dict[int, Line | None]:
    """Where instructions come from: the innermost function where some were inlined."""
    done = subprocess.run(
        [_ADDR2LINE, "-a", "-i", "-e", str(image), *(f"{one:#x}" for one in addresses)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    found: dict[int, Line | None] = {}
    words = iter(done.stdout.splitlines())
    for word in words:
        if word.startswith("0x"):
            place, _, number = next(words).partition(" ")[0].rpartition(":")
            found[int(word, 16)] = Line(Path(place), int(number)) if number.isdigit() and number != "0" else None
    return found


def most_times(lines: Sequence[Line]) -> dict[Line, int]:
    """How often the loops of these lines turn at most. Raises ``ValueError`` for one that does not say so."""
    found: dict[Line, int] = {}
    for file in sorted({line.file for line in lines}):
        own = [line for line in lines if line.file == file]
        for line, times in zip(own, _evaluated(file, [_expression(line) for line in own]), strict=True):
            if times is None or times < 0:
                raise ValueError(f"{file.name}:{line.number}: {line.text}: no bound; {_ADVICE}")
            found[line] = times
    return found


def _expression(line: Line) -> str | None:
    if match := _COMMENT.search(line.text):
        return match[1]
    match = _FOR.search(line.text)
    if not match or match[1] != match[4]:
        return None
    test = re.search(rf"(?:^|&& ){match[1]} (<=?) ((?:[^&|]|&&$)+?)(?: &&|$)", match[3])
    if not test:
        return None
    if not _CONSTANT.fullmatch(test[2] + match[2]):
        return None
    more, step = (1 if test[1] == "<=" else 0), match[6] or "1"
    return f"(({test[2]}) - ({match[2]}) + {more} + ({step}) - 1) / ({step})"


def _evaluated(file: Path, expressions: Sequence[str | None]) -> list[int | None]:
    """By the compiler, in the file's own words. What depends on a variable has no value: it differs from try to try."""
    tries = [_evaluated_with(file, expressions, value) for value in (0, 1, 3)]
    return [values[0] if len(set(values)) == 1 else None for values in zip(*tries, strict=True)]


def _evaluated_with(file: Path, expressions: Sequence[str | None], value: int) -> list[int | None]:
    functions = []
    for i, expression in enumerate(expressions):
        names = sorted(set(re.findall(r"\b[a-z]\w*", re.sub(r"sizeof\(struct \w+\)", "", expression or ""))))
        known = "".join(f"enum {{ {name} = {value} }}; " for name in names)
        functions.append(f"int bound_{i}(void) {{ {known}return {expression or -1}; }}")
    source = f'#include "{file}"\n' + "\n".join(functions)
    done = subprocess.run(
        [rv32.COMPILER, *_FLAGS, f"-I{ROOT / FIRMWARE}/boards/rv32", f"-I{file.parent}", "-x", "c", "-"],
        input=source, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise ValueError(f"{file.name}: {done.stderr.strip().splitlines()[0]}")
    found = re.findall(r"^bound_(\d+):\n(?:\t\.\w+.*\n|\.\w+.*\n)*\tli\ta0,(-?\d+)", done.stdout, re.MULTILINE)
    values = {int(i): int(number) for i, number in found}
    return [values.get(i) for i in range(len(expressions))]
