"""Programs like those of the NAS parallel benchmarks, and mixes of jobs of them, for nodes that two jobs share.

Nothing here was measured. ``operations`` of a point and an iteration are what NPB 3.4 itself counts for its Mop/s (the
formulas in the sources of bt, cg, ft, lu, mg and sp), for class D. ``bytes`` are our count of what its MPI
version moves between memory and the caches in the same loops: each array that a loop reads or writes counts 8 bytes a
point, 16 for a complex number, and what is written without being read before counts twice, since the line is fetched.
Planes and lines of a sweep stay in the caches. What is counted for each program stands next to it.

A core computes ``CORE_GFLOPS`` when its data are in the caches, a tenth of its peak, for all programs alike: ours, and
fixed before any pair was run. Then an operation takes 1 / CORE_GFLOPS ns, and its bytes take as long as one core alone
needs for them: that gives the GB/s that a thread asks for, and the share of its time in which it waits for memory.
Messages between nodes are not in it.

The mixes are drawn here, apart from any matching, and ``digest`` is the SHA-256 of all of them: the docs have it.
Seeds 1 to 3 choose constants, seeds 101 to 110 judge.
"""

from __future__ import annotations

import hashlib
from math import ceil, log
from typing import Final, NamedTuple

import msgspec
import numpy as np

CORE_GFLOPS: Final = 4.0
"""Ours: a tenth of the 40 Gflop/s that a core of Zen 2 reaches at 2.5 GHz with two fused operations of 256 bit."""
CORE_GBS: Final = 30.4
"""One core of an EPYC 7502 alone (``twin/machines/rome.toml``)."""
KEY_S: Final = 20 / 2.5e9
"""Ours: ``is`` counts keys, not operations on them; 20 instructions, one a clock."""


class Program(NamedTuple):
    """``operations`` and ``bytes`` of one point in one iteration. ``note``: what the bytes are."""

    name: str
    operations: float
    bytes: float
    note: str

    @property
    def compute_s(self) -> float:
        """Of one point with all data in the caches."""
        return KEY_S if self.name == "is" else self.operations / (CORE_GFLOPS * 1e9)

    def demand(self, faster: float = 1.0) -> tuple[float, float]:
        """The GB/s that a thread asks for alone, and the share of its time in which it waits for them. ``faster``: so
        many times as fast a core."""
        compute_s, memory_s = self.compute_s / faster, self.bytes / (CORE_GBS * 1e9)
        return self.bytes / (compute_s + memory_s) / 1e9, memory_s / (compute_s + memory_s)


GRID: Final = 408
"""Points of bt, lu and sp in each direction, class D."""
_FT_POINTS: Final = 2048 * 1024 * 1024
_CG_ROW: Final = 21 * 22  # nonzeros of a row, about

PROGRAMS: Final = (
    Program("bt", 3478.8 - 17655.7 / GRID, 8 * 421.0, "right-hand side 100; in each of 3 directions the block"
            " matrices written and read 75, u and the right-hand side 27; add 15"),
    Program("cg", 2 * (3 + _CG_ROW + 25 * (5 + _CG_ROW) + 3), 26 * _CG_ROW * 12.0 + 25 * 10 * 8,
            "a row: 26 products of a value and an index each, and ten vectors in each of 25 steps"),
    Program("ep", 20.0, 0.0, "random numbers stay in registers"),
    Program("ft", (14.8157 + 7.19641 * log(_FT_POINTS)) / 25 + 5.23518 + 7.21113 * log(_FT_POINTS), 360.0,
            "evolve 72; three transforms, each copied in and out, 144; the transposition, three copies, 144"),
    Program("is", 1.0, 64.0, "a key: bucket, buffer and exchange 32, counting at random 32"),
    Program("lu", 1984.77 - 10923.3 / GRID, 8 * 120.0, "right-hand side 65; lower and upper sweep 15 each; add 15;"
            " scaling 10"),
    Program("mg", 58.0, 8 * 14.4 * 8 / 7, "restriction 1.3, interpolation 2.1, two residuals 8, smoothing 3; the"
            " coarser grids a seventh more"),
    Program("sp", 881.174 - 4683.91 / GRID, 8 * 437.0, "right-hand side 109; txinvr 16; in each of 3 directions the"
            " fifteen diagonals written, eliminated and read, and the right-hand side 99; add 15"),
)  # fmt: skip


class MixedJob(msgspec.Struct, frozen=True):
    """``nodes`` in halves: 0.5 is one half of a node. ``run_s``: alone on whole nodes."""

    program: str
    nodes: float
    run_s: int
    request_s: int


JOBS: Final = 300
NODES: Final = 32
"""Of the machine."""
SIZES: Final = ((0.5, 1.0, 2.0, 4.0, 8.0), (0.15, 0.30, 0.25, 0.20, 0.10))
MEDIAN_S: Final = 3600
LONGEST_S: Final = 12 * 3600
_MEMORY: Final = ("cg", "ft", "is", "mg", "sp")
MIXES: Final = {"even": 1.0, "memory": 3.0, "compute": 1 / 3}
"""How often a program of ``_MEMORY`` is drawn for each time that one of the others is."""
TUNING: Final = (1, 2, 3)
JUDGING: Final = tuple(range(101, 111))


def mix(name: str, seed: int, jobs: int = JOBS) -> list[MixedJob]:
    """A backlog: all jobs are there from the beginning, in this order. Run times are log-normal, requests up to five
    times as long."""
    random = np.random.default_rng([seed, *name.encode()])
    weight = np.array([MIXES[name] if program.name in _MEMORY else 1.0 for program in PROGRAMS])
    programs = random.choice(len(PROGRAMS), jobs, p=weight / weight.sum())
    sizes = random.choice(SIZES[0], jobs, p=SIZES[1])
    run_s = np.clip(random.lognormal(log(MEDIAN_S), 0.8, jobs), 300, LONGEST_S).astype(int)
    request_s = [600 * ceil(run * over / 600) for run, over in zip(run_s, random.uniform(1, 5, jobs), strict=True)]
    names = [PROGRAMS[program].name for program in programs]
    rows = zip(names, sizes.tolist(), run_s.tolist(), request_s, strict=True)
    return [MixedJob(*row) for row in rows]


def digest() -> str:
    """Of all mixes with all their seeds, and of what the programs ask for."""
    text = hashlib.sha256()
    for program in PROGRAMS:
        text.update(f"{program.name} {program.operations:.6g} {program.bytes:.6g}\n".encode())
    for name in MIXES:
        for seed in TUNING + JUDGING:
            text.update(msgspec.json.encode((name, seed, mix(name, seed))))
    return text.hexdigest()


if __name__ == "__main__":
    print(digest())
