"""The picture of the page in docs/, of the partition that the tests make up: ``python -m tests.page.picture FILE``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from msgspec.structs import replace

from cluster_agent.page.snapshot import Viewer
from cluster_agent.page.views import assets, pages
from tests.chromium import browser
from tests.page.partitions import story


def take(file: Path, width: int = 1000) -> None:
    """The first screen of the first view, as it is without a script."""
    found = pages("/", {}, replace(story(), partition="main (EMULATED)"), Viewer("root", True))
    assert found is not None
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder) / "profile") as page:
        for path, (_, body) in assets().items():
            (Path(folder) / path[1:]).write_bytes(body)
        shown = Path(folder) / "index.html"
        shown.write_text(found[1])
        page.show(shown, width, script=False)
        page.picture(file, whole=False)


if __name__ == "__main__":
    take(Path(sys.argv[1]))
