"""Prints the part of requirements.lock that nodectl with some extras needs, hashes included.

    python debian/locked.py nvidia cluster > node.lock

It follows the requirements of what is installed next to this interpreter, which setup.sh installed from the same lock.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCK = Path(__file__).parents[1] / "requirements.lock"


def needed(extras: list[str]) -> set[str]:
    """Names of all packages that nodectl with these extras imports, itself left out."""
    found: set[str] = set()
    todo = [("nodectl", tuple(extras))]
    while todo:
        name, chosen = todo.pop()
        for line in requires(name) or ():
            requirement = Requirement(line)
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in (*chosen, "")):
                continue
            name = canonicalize_name(requirement.name)
            if name not in found:
                found.add(name)
                todo.append((name, tuple(requirement.extras)))
    return found


def main() -> None:
    """Print the entries of the lock, in its order."""
    names = needed(sys.argv[1:])
    entries = re.split(r"\n(?=\S)", LOCK.read_text())
    kept = [entry for entry in entries if canonicalize_name(re.split(r"[ =]", entry, maxsplit=1)[0]) in names]
    missing = names - {canonicalize_name(re.split(r"[ =]", entry, maxsplit=1)[0]) for entry in kept}
    if missing:
        sys.exit(f"requirements.lock lacks {', '.join(sorted(missing))}")
    print("\n".join(kept))


if __name__ == "__main__":
    main()
