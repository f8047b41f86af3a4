"""The pages that people write, and which of their lines are written by hand.

Written by hand are ``README.md`` and the pages of ``docs/``, but not:

- ``docs/notes/``, which has trials and reasons;
- ``docs/reference/`` and ``docs/man/``, which the code makes;
- fenced blocks: commands, files and code, which tests run or compare;
- tables whose rows are in ``benchmarks/published/``, which ``tests/test_published.py`` compares.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


def pages() -> list[Path]:
    """The pages that people write, README first."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def written(text: str) -> Iterator[str]:
    """The lines of a page that people have written."""
    is_fenced = is_named = is_made = False  # is_made: within the table whose rows a comment above has named
    for line in text.splitlines():
        if line.startswith("```"):
            is_fenced = not is_fenced
        elif line.startswith("<!-- rows: "):
            is_named = True
        elif not is_fenced:
            is_made = line.startswith("|") and (is_named or is_made)
            is_named = is_named and not line
            if line and not is_made:
                yield line
