"""A job's joules in Slurm's own record: the AdminComment of `sacct`, written when the job has ended.

Only ``sacctmgr`` takes it then: ``scontrol`` refuses a job that has finished. It stores words ``key=value``; quotes
would come back as others. What the comment was before is replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cluster_agent.errors import ClusterError
from cluster_agent.serve.people_protocol import JoulesRow
from cluster_agent.slurm.slurm_programs import last_line, run

TRIED_S: Final = 300.0
"""Ours: Slurm's own record of a job reaches its database some seconds after its end, later where that is down."""


def words(row: JoulesRow) -> str:
    """``nodectl joules=5926 mean_w=213.4 nodes=2``: mean_w of a node; ``shared=yes``: of the job's share alone; joules=
    shared or unknown where they are."""
    took_s = row.ended_s - row.began_s
    if row.energy_j is None:
        return f"nodectl joules={'shared' if row.is_shared else 'unknown'} nodes={row.nodes}"
    mean = f" mean_w={row.energy_j / took_s / row.nodes:.1f}" if took_s > 0 else ""
    return f"nodectl joules={row.energy_j:.0f}{mean} nodes={row.nodes}{' shared=yes' if row.is_shared else ''}"


def write(row: JoulesRow, sacctmgr: str = "sacctmgr") -> None:
    """Into Slurm's database; ``ClusterError`` if it does not take it, as while it has no such job yet."""
    where = ["where", f"jobid={row.job}", *([f"cluster={row.cluster}"] if row.cluster else [])]
    command = [sacctmgr, "-i", "modify", "job", *where, "set", f"admincomment={words(row)}"]
    done = run(command, "slurmdbd")
    if done.returncode or b"Modified jobs" not in done.stdout:
        last = last_line(done.stderr, done.stdout)
        raise ClusterError(f"sacctmgr did not take the joules of job {row.job}: {last}")


class JobComments:
    """``turn`` writes the rows that are new since the last one, and tries those again that were not taken.
    ``ended`` gives the rows that ended after a time; ``wall_s`` is now."""

    def __init__(
        self,
        ended: Callable[[float], list[JoulesRow]],
        store: Callable[[JoulesRow], None],
        say: Callable[[str], None],
        wall_s: Callable[[], float],
    ) -> None:
        self._ended, self._store, self._say, self._wall_s = ended, store, say, wall_s
        self._seen_s = wall_s()
        self._waiting: list[JoulesRow] = []

    def turn(self) -> None:
        """Jobs that ended while this did not run get no comment: their joules stay in `clusterctl energy`."""
        try:
            new = self._ended(self._seen_s)
        except ClusterError:  # who follows the queue says so
            return
        self._seen_s = max([self._seen_s, *(row.ended_s for row in new)])
        waiting, self._waiting = [*self._waiting, *new], []
        for row in waiting:
            try:
                self._store(row)
            except ClusterError as error:
                if self._wall_s() - row.ended_s < TRIED_S:
                    self._waiting.append(row)
                else:
                    self._say(f"{error}; given up")
