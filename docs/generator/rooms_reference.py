"""The rooms: every folder of Python in the packages, by the first paragraph of its ``__init__``."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

from docs.generator.page_text import page, paragraph, table

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = (
    "foundation", "nodectl", "pmu", "firmware_bridge", "cluster_agent", "calibration", "twin", "lab", "hil_tests",
)  # fmt: skip


def rooms_pages() -> dict[str, str]:
    """``reference/rooms.md``."""
    about = (
        "A room is a folder with one question. This page says what each is, in the words of its own `__init__`;"
        " the rules between them: [architecture](../architecture.md)."
    )
    parts = [about]
    for package in PACKAGES:
        rows = [
            (f"`{path.parent.relative_to(ROOT)}/`", _about(path))
            for path in sorted((ROOT / package).rglob("__init__.py"))
        ]
        parts += [f"## {package}", table(("room", "what it is"), rows)]
    return {"reference/rooms.md": page("Rooms", *parts)}


def _about(path: Path) -> str:
    return paragraph((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0])
