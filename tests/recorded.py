"""The recorded data that lies in ../shared/data, outside the repository.

What needs it says so with ``needs_recorded``. Where it is missing, ``conftest.py`` counts these tests in one line.
"""

from __future__ import annotations

from pathlib import Path

import pytest

RECORDED = Path(__file__).parents[2] / "shared" / "data"
WHY = "needs recorded data: "


def needs_recorded(name: str) -> pytest.MarkDecorator:
    """Skip without this file or folder."""
    return pytest.mark.skipif(not (RECORDED / name).exists(), reason=f"{WHY}../shared/data/{name}")
