"""Running one of another manager's programs (squeue, sinfo, scontrol, sacctmgr; oarstat)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cluster_agent.errors import ClusterError

PATIENCE_S: Final = 20.0
"""Ours: twice Slurm's MessageTimeout. With a look every ten seconds a job that is gone is ended within thirty."""


def run(
    command: list[str],
    daemon: str = "slurmctld",
    environment: Mapping[str, str] = MappingProxyType({}),
    reads: bytes = b"",
    patience_s: float = PATIENCE_S,
    package: str = "slurm-client",
) -> subprocess.CompletedProcess[bytes]:
    """``ClusterError`` in one line if it cannot be run, or does not answer, since ``daemon`` may be gone.
    ``environment``: in addition to ours; ``reads``: its standard input; ``package``: what has it in Debian."""
    try:
        return subprocess.run(
            command, input=reads, env=os.environ | environment, capture_output=True, timeout=patience_s, check=False
        )
    except subprocess.TimeoutExpired:
        name = Path(command[0]).name
        raise ClusterError(f"{name} did not answer within {patience_s:g} s: is {daemon} running?") from None
    except OSError as error:
        raise ClusterError(f"{command[0]}: cannot run it: {error.strerror} ({package})") from None


def last_line(*streams: bytes) -> str:
    """Of the first of these that says anything."""
    said = next((stream for stream in streams if stream.strip()), b"no reason")
    return said.decode(errors="replace").strip().splitlines()[-1].strip()[:200]
