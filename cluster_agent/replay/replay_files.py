"""The files that `clusterctl state export --replay` writes, by name, and the options of a replay that take them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

LOG: Final = "jobs.swf"
TABLE: Final = "jobs.txt"
"""In place of the log for policies that place jobs on nodes, as ``sacct --parsable2`` writes it."""
MACHINE: Final = "machine.toml"
CAPS: Final = "caps.csv"
JOB_WATTS: Final = "job-watts.csv"
WAYS: Final = "configurations.csv"

OPTIONS: Final = {MACHINE: "--machine", CAPS: "--cap", WAYS: "--configurations", JOB_WATTS: "--job-watts"}


def arguments(directory: str, names: Collection[str]) -> list[str]:
    """Of `clusterctl replay` with these files."""
    wanted = [name for name in OPTIONS if name in names]
    trace = LOG if LOG in names else TABLE
    return [f"{directory}/{trace}", *(part for name in wanted for part in (OPTIONS[name], f"{directory}/{name}"))]
