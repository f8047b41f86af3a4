"""The journal of a node manager: a file for each reservation, which survives its process and the machine.

A file is replaced whole, and synced before anything that follows from it is said. What cannot be read any more is named
in one line and put aside, so that the rest of the journal counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from cluster_agent.dispatch.live.dispatch_frames import Program
from cluster_agent.dispatch.messages import Reservation
from foundation.directories import make_directory, sync_directory
from foundation.planted_links import write_durably


class Entry(msgspec.Struct, frozen=True):
    """``owner``: the key of its task manager; ``boot``: the node's, when this was written."""

    row: Reservation
    program: Program | None
    owner: str
    boot: str


class NodeJournal:
    """``OSError`` where it cannot be kept."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        make_directory(os.fspath(directory))

    def load(self, say: Callable[[str], None]) -> list[Entry]:
        """All entries, in the order of jobs and attempts."""
        found = []
        for path in sorted(self._directory.glob("*.json")):
            try:
                found.append(msgspec.json.decode(path.read_bytes(), type=Entry))
            except (OSError, msgspec.MsgspecError, ValueError) as error:
                say(f"{path}: cannot be read, and is put aside: {error}")
                path.replace(path.with_suffix(".damaged"))
        return found

    def write(self, entry: Entry) -> None:
        """On return it is on the disk."""
        write_durably(self._path(entry.row.job, entry.row.attempt), msgspec.json.encode(entry))

    def erase(self, job: int, attempt: int) -> None:
        """For good: an earlier attempt that came back after a power cut would run the job twice."""
        self._path(job, attempt).unlink(missing_ok=True)
        sync_directory(self._directory)

    def _path(self, job: int, attempt: int) -> Path:
        return self._directory / f"{job}.{attempt}.json"
