"""``python -m docs.generator.word_count``: how many words of the pages people have written, page by page.

Written by hand are ``README.md`` and the pages of ``docs/``, but not:

- ``docs/notes/``, which has trials and reasons;
- ``docs/reference/`` and ``docs/man/``, which the code makes;
- fenced blocks: commands, files and code, which tests run or compare;
- tables whose rows are in ``benchmarks/published/``, which ``tests/test_published.py`` compares.

A word is what stands between blanks and has a letter or a digit. ``MOST`` may fall but not rise: what is new takes the
place of something.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
MOST: Final = 24_000


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


def words(text: str) -> int:
    """How many words of a page people have written."""
    return sum(len(re.findall(r"\S*\w\S*", line)) for line in written(text))


def main() -> int:
    """Print the count of each page; 1 if all together have more than ``MOST``."""
    counts = {page: words(page.read_text()) for page in pages()}
    for page, count in counts.items():
        print(f"{count:6} {page.relative_to(ROOT)}")
    print(f"{sum(counts.values()):6} of {MOST}")
    return int(sum(counts.values()) > MOST)


if __name__ == "__main__":
    raise SystemExit(main())
