"""What a job runs, as one name by which a later run of it is recognised: made of its command line, not of ``/proc``.

It is a name and no proof: two programs may have the same, and a program may change under its name. Whoever uses it must
look whether what was kept fits (``nodectl.remembered``).
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Sequence
from typing import Final

from foundation.digest import sha256_hex

LAUNCHERS: Final = re.compile(
    r"(python|pypy|perl|ruby|julia)[\d.]*|(ba|da|z|k|tc|c)?sh|env|nice|numactl|taskset|time|timeout|stdbuf|exec|nohup"
    r"|mpirun|mpiexec|srun|prun|orterun|apptainer|singularity"
)
"""Ours: programs that run the one named after them."""

LONGEST: Final = 200
"""Ours: characters of a name; a longer one ends in its digest."""


def program_name(command: Sequence[str], workdir: str = "", script: str = "") -> str:
    """The file that is run, after the launchers before it; of a script a digest of its text."""
    if script:
        return f"script {_digest(script)}"
    words: list[str] = []
    for word in command:
        if words and (word.startswith("-") or "=" in word or word.replace(".", "").isdigit()):
            continue  # options of a launcher, its settings and counts
        words.append(os.path.normpath(os.path.join(workdir, word)) if "/" in word else word)
        if not LAUNCHERS.fullmatch(os.path.basename(word)):
            break
    name = " ".join(words)
    return name if len(name) <= LONGEST else f"{name[:LONGEST]} {_digest(name)}"


def _digest(text: str) -> str:
    return sha256_hex(text.encode(errors="surrogateescape"))[:16]
