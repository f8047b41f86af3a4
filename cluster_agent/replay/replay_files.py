"""The files that `clusterctl state export --replay` writes, by name, and the options of a replay that take them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LOG: Final = "jobs.swf"
TABLE: Final = "jobs.txt"
"""In place of the log for policies that place jobs on nodes, as ``sacct --parsable2`` writes it."""
SHARED_TABLE, PAIRS = "jobs.csv", "pairs.csv"
"""The same where two jobs share a node, with the speeds that the policy knows."""
MACHINE: Final = "machine.toml"
CAPS: Final = "caps.csv"
JOB_WATTS: Final = "job-watts.csv"
WAYS: Final = "configurations.csv"
FAILURES: Final = "failures.csv"
RESERVATIONS: Final = "reservations.csv"
SWITCHES: Final = "switches.txt"
"""An option of a replay in each line, with its value behind a blank."""

OPTIONS: Final = {
    MACHINE: "--machine",
    CAPS: "--cap",
    WAYS: "--configurations",
    JOB_WATTS: "--job-watts",
    FAILURES: "--failures",
    RESERVATIONS: "--reservations",
    PAIRS: "--pairs",
}


def arguments(directory: str, files: Mapping[str, str]) -> list[str]:
    """Of `clusterctl replay` with these files, by name."""
    wanted = [name for name in OPTIONS if name in files]
    trace = next(name for name in (LOG, TABLE, SHARED_TABLE) if name in files)
    switches = [part for line in files.get(SWITCHES, "").splitlines() for part in line.split(" ", 1)]
    given = [part for name in wanted for part in (OPTIONS[name], f"{directory}/{name}")]
    return [f"{directory}/{trace}", *given, *switches]
