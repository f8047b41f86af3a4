"""Hooks of MkDocs (mkdocs.yml): README is the first page, notes are found by themselves, and a link to a file that is
not on the site becomes the file's name."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
LINK: Final = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """The menu's last entry names a folder: all its pages."""
    notes = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs" / "notes").glob("*.md"))
    config.nav = [{"Notes": notes} if entry == {"Notes": "notes"} else entry for entry in config.nav]
    return config


def on_files(files: Any, config: Any) -> Any:
    """README becomes index.md."""
    from mkdocs.structure.files import File

    text = LINK.sub(lambda link: f"[{link[1]}]({link[2].removeprefix('docs/')})", (ROOT / "README.md").read_text())
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, files: Any, **_: Any) -> str:
    """Links that leave the site become code."""
    folder = posixpath.dirname(page.file.src_uri)
    known = {file.src_uri for file in files}

    def kept(link: re.Match[str]) -> str:
        target = link[2].partition("#")[0]
        if not target or "://" in target or posixpath.normpath(posixpath.join(folder, target)) in known:
            return link[0]
        name = posixpath.normpath(posixpath.join("docs" if page.file.src_uri != "index.md" else "", folder, target))
        return f"{link[1]} (`{name}`)" if link[1].strip("`") != name else f"`{name}`"

    return LINK.sub(kept, markdown)
