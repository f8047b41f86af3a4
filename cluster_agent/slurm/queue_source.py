"""Asking Slurm for its queue: slurmrestd over its Unix socket where there is one, else ``squeue --json``.

Either may hang while slurmctld is gone, so this runs in a process of its own (``clusterctl slurm follow``), never in
the cluster agent's.
"""

from __future__ import annotations

import http.client
import socket
from pathlib import Path
from typing import Final

from cluster_agent.errors import ClusterError
from cluster_agent.slurm.slurm_programs import PATIENCE_S, last_line, run

REST: Final = Path("/run/slurmrestd/slurmrestd.socket")
VERSIONS: Final = ("v0.0.41", "v0.0.40", "v0.0.39", "v0.0.38")
"""Of slurmrestd's paths, the newest first: Slurm 24.05, 23.11, 23.02 and 22.05."""


class QueueSource:
    """``rest``: the socket of slurmrestd; if nobody listens there, ``squeue`` is run."""

    def __init__(self, rest: Path = REST, squeue: str = "squeue") -> None:
        self._rest, self._squeue = rest, squeue
        self._version = ""
        self.way = ""
        """What answered last, for the log."""

    def read(self) -> bytes:
        """The queue as JSON; ``ClusterError`` in one line if Slurm does not answer."""
        if self._rest.is_socket():
            try:
                return self._by_rest()
            except (OSError, http.client.HTTPException):
                self._version = ""
        return self._by_squeue()

    def _by_rest(self) -> bytes:
        for version in (self._version,) if self._version else VERSIONS:
            status, body = self._get(f"/slurm/{version}/jobs")
            if status == 200:
                self._version, self.way = version, f"slurmrestd {version}"
                return body
        raise OSError(0, "slurmrestd has none of the versions that are known here")

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("localhost", timeout=PATIENCE_S)
        connection.sock = socket.socket(socket.AF_UNIX)
        try:
            connection.sock.settimeout(PATIENCE_S)
            connection.sock.connect(str(self._rest))
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _by_squeue(self) -> bytes:
        done = run([self._squeue, "--json"])
        if done.returncode:
            raise ClusterError(f"squeue failed: {last_line(done.stderr)}")
        self.way = "squeue"
        return done.stdout
