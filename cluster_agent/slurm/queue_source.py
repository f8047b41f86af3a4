"""Asking Slurm for its queue: slurmrestd over its Unix socket where there is one, else ``squeue --json``; or slurmrestd
at an address, with a JSON Web Token.

Any of them may hang while slurmctld is gone, so this runs in a process of its own (``clusterctl slurm follow``), never
in the cluster agent's.
"""

from __future__ import annotations

import http.client
import os
import pwd
import socket
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cluster_agent.errors import ClusterError
from cluster_agent.slurm.slurm_programs import PATIENCE_S, last_line, run

REST: Final = Path("/run/slurmrestd/slurmrestd.socket")
VERSIONS: Final = ("v0.0.41", "v0.0.40", "v0.0.39", "v0.0.38")
"""Of slurmrestd's paths, the newest first: Slurm 24.05, 23.11, 23.02 and 22.05."""


MOST_TOKEN_BYTES: Final = 16 << 10


class QueueSource:
    """``rest``: the socket of slurmrestd; if nobody listens there, ``squeue`` is run. Or its ``http(s)://HOST:PORT``,
    which is then the only one; ``token``: the file with the token for it, read at each request, since tokens expire."""

    def __init__(self, rest: Path | str = REST, squeue: str = "squeue", token: Path | None = None) -> None:
        self._url = urlsplit(rest) if isinstance(rest, str) and "://" in rest else None
        self._rest, self._squeue, self._token = Path(rest), squeue, token
        self._version = ""
        self.way = ""
        """What answered last, for the log."""

    def read(self) -> bytes:
        """The queue as JSON; ``ClusterError`` in one line if Slurm does not answer."""
        if self._url:
            try:
                return self._by_rest()
            except (OSError, http.client.HTTPException, ValueError) as error:
                why = getattr(error, "strerror", None) or str(error) or type(error).__name__
                self._version = ""
                raise ClusterError(f"slurmrestd at {self._url.netloc}: {why}") from None
        if self._rest.is_socket():
            try:
                return self._by_rest()
            except (OSError, http.client.HTTPException):
                self._version = ""
        return self._by_squeue()

    def _by_rest(self) -> bytes:
        status = 0
        for version in (self._version,) if self._version else VERSIONS:
            status, body = self._get(f"/slurm/{version}/jobs")
            if status == 200:
                self._version, self.way = version, f"slurmrestd {version}"
                return body
            if status == 401:
                raise OSError(0, "it does not take the token: has it expired?")
        raise OSError(0, f"it has none of the versions that are known here (status {status})")

    def _get(self, path: str) -> tuple[int, bytes]:
        kind = http.client.HTTPSConnection if self._url and self._url.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._url.netloc if self._url else "localhost", timeout=PATIENCE_S)
        try:
            if self._url is None:
                connection.sock = socket.socket(socket.AF_UNIX)
                connection.sock.settimeout(PATIENCE_S)
                connection.sock.connect(str(self._rest))
            connection.request("GET", path, headers=self._who())
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _who(self) -> dict[str, str]:
        """Version 22.05 wants the name of the token's user, too; ``scontrol token`` writes SLURM_JWT=TOKEN."""
        if self._token is None:
            return {}
        with open(self._token, encoding="ascii") as file:
            token = file.read(MOST_TOKEN_BYTES).strip().removeprefix("SLURM_JWT=")
        return {"X-SLURM-USER-NAME": pwd.getpwuid(os.geteuid()).pw_name, "X-SLURM-USER-TOKEN": token}

    def _by_squeue(self) -> bytes:
        done = run([self._squeue, "--json"])
        if done.returncode:
            raise ClusterError(f"squeue failed: {last_line(done.stderr)}")
        self.way = "squeue"
        return done.stdout
