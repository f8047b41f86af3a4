"""`python -m hil_tests [--rig NAME] [pytest options]`: run the scenarios and print which ones pass on which rig."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main([str(Path(__file__).parent), "--hil-table", "-q", *sys.argv[1:]]))
