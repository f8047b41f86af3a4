"""``python -m docs.generator [--check]``: write the generated pages, or say which are out of date (exit status 1)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from docs.generator.errors_reference import errors_pages
from docs.generator.manual_pages import manual_pages
from docs.generator.metrics_reference import metrics_pages
from docs.generator.monitoring import monitoring_files
from docs.generator.parts_picture import picture_pages
from docs.generator.policies_reference import policies_pages
from docs.generator.rooms_reference import rooms_pages
from docs.generator.settings_reference import settings_pages

DOCS: Final = Path(__file__).parents[1]


def pages() -> dict[str, str]:
    """The text of every generated page, by its path below ``docs/``."""
    made = (
        settings_pages, metrics_pages, policies_pages, errors_pages, manual_pages, rooms_pages, picture_pages,
        monitoring_files,
    )  # fmt: skip
    return {path: text for make in made for path, text in make().items()}


def out_of_date() -> dict[str, str]:
    """The pages that are not what the code says, with the text that they should have."""
    return {
        path: text for path, text in pages().items() if not (DOCS / path).exists() or (DOCS / path).read_text() != text
    }


def main(arguments: list[str]) -> int:
    """Write what is out of date, or with ``--check`` name it."""
    stale = out_of_date()
    if "--check" in arguments:
        for path in stale:
            print(f"docs/{path} is out of date: python -m docs.generator", file=sys.stderr)
        return bool(stale)
    for path, text in stale.items():
        (DOCS / path).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / path).write_text(text)
        print(f"docs/{path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
