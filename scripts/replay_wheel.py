"""Builds the wheel of nodectl-replay, the distribution of this tree for those who only replay.

    python scripts/replay_wheel.py [DIRECTORY]     (`make wheel-replay`: build/wheel-replay)

It has the packages ``foundation`` and ``cluster_agent`` with their one native module, and neither firmware nor NVML nor
hooks. Names and versions of what it needs are those of pyproject.toml. It takes the place of nodectl, whose files it
has: an environment has one of the two.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from foundation.shell.command_line import REPLAY_EXTRAS, REPLAYS_ALONE  # noqa: E402

PACKAGES: Final = ("foundation", "cluster_agent")
FILES: Final = ("LICENSE", "NOTICE")
DESCRIPTION: Final = "Job logs scheduled again under policies that ship or are yours: the library and clusterctl replay"
NEEDED: Final = ("cffi", "click", "msgspec", "numpy")
DATA: Final = {
    "foundation": ["py.typed"],
    "cluster_agent": ["py.typed", "machines/*.toml", "samples/*", "campaigns/*.toml", "reports/*.css", "reports/*.js"],
}
BUILT: Final = ("*.so", "*.o", "__pycache__", "_native.c", "nodectl-hook")
"""Files that a build leaves in the tree."""
SETUP: Final = """\
from setuptools import setup

setup(cffi_modules=["cluster_agent/build_native.py:ffibuilder"])
"""


def project(given: dict[str, Any]) -> str:
    """pyproject.toml of this distribution, from that of the whole."""
    of, extras = given["project"], given["project"]["optional-dependencies"]
    needed = [one for one in of["dependencies"] if re.split(r"[^\w-]", one)[0] in NEEDED]
    assert len(needed) == len(NEEDED)
    tables: dict[str, dict[str, Any]] = {
        "build-system": given["build-system"],
        "project": {
            "name": REPLAYS_ALONE,
            "dynamic": ["version"],
            "description": DESCRIPTION,
            "readme": "README.md",
            "requires-python": of["requires-python"],
            "license": of["license"],
            "license-files": list(FILES),
            "dependencies": needed,
        },
        "project.optional-dependencies": {name: extras[name] for name in REPLAY_EXTRAS},
        "project.scripts": {"clusterctl": of["scripts"]["clusterctl"]},
        "tool.setuptools": {"include-package-data": False},
        "tool.setuptools.dynamic": {"version": {"attr": "foundation.__version__"}},
        "tool.setuptools.packages.find": {"include": [f"{name}*" for name in PACKAGES]},
        "tool.setuptools.package-data": DATA,
    }
    lines = []
    for name, values in tables.items():
        lines += [f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items()), ""]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)  # texts, lists of texts, true and false are the same in both


def build(directory: Path) -> Path:
    """The wheel in this folder, built from a copy of the tree, since a build leaves files in its tree."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="replay-wheel-") as work:
        source, made = Path(work) / "source", Path(work) / "made"
        for name in PACKAGES:
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns(*BUILT))
        for name in FILES:
            shutil.copy2(ROOT / name, source / name)
        shutil.copy2(ROOT / "docs" / "library.md", source / "README.md")
        (source / "setup.py").write_text(SETUP)
        (source / "pyproject.toml").write_text(project(tomllib.loads((ROOT / "pyproject.toml").read_text())))
        pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
        subprocess.run([*pip, "--disable-pip-version-check", "-w", str(made), str(source)], check=True)
        (found,) = made.glob("*.whl")
        return Path(shutil.copy2(found, directory / found.name))


if __name__ == "__main__":
    print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "wheel-replay"))
