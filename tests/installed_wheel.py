"""The product as a wheel: of this tree, and of the version before it. Built once, then taken from build/wheels."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "wheels"
PARTS = ("foundation", "nodectl", "pmu", "twin", "firmware_bridge", "cluster_agent", "calibration", "lab", "systemd")
MANUALS = "docs/man"
FILES = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "NOTICE")
REPLAY_PARTS = ("foundation", "cluster_agent")
REPLAY_FILES = ("scripts/replay_wheel.py", "pyproject.toml", "docs/library.md", "LICENSE", "NOTICE")
BUILT = ("*.so", "*.so.*", "*.o", "__pycache__", "_native.c", "_progress.c", "_model.c", "_kernel.c", "_pulp.c",
         "_controlpulp.c", "controlpulp-posix")  # fmt: skip


def this_wheel() -> Path:
    """The wheel of this tree."""
    return wheel(ROOT)


def tree_before(directory: Path) -> Path:
    """The tree of the version before, in a new folder; skips where the history is not there."""
    archived = _git("archive", commit_before(), *PARTS, *FILES)
    if not archived:
        pytest.skip("the version before is not in this checkout's history")
    with tarfile.open(fileobj=BytesIO(archived)) as archive:
        archive.extractall(directory, filter="data")
    return directory


def commit_before() -> str:
    """The version before: the last tag. As long as no release is tagged, the last commit whose node agent was root, the
    parent of the one that brought the writer's unit."""
    commit = _git("describe", "--tags", "--abbrev=0", "HEAD^").strip()
    if not commit:
        brought = _git("log", "--diff-filter=A", "--format=%H^", "--", "systemd/nodectl-writer.service")
        commit = brought.strip().rpartition(b"\n")[2]
    return commit.decode()


def _git(*arguments: str) -> bytes:
    """What it prints; nothing if it fails."""
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True).stdout


def wheel(tree: Path) -> Path:
    """The wheel of a source tree."""
    directory = KEPT / _digest(tree, FILES, (*PARTS, MANUALS))
    if not directory.exists():
        _build(tree, directory)
    (found,) = directory.glob("*.whl")
    return found


def replay_wheel() -> Path:
    """The wheel of nodectl-replay, of this tree."""
    directory = KEPT / f"replay-{_digest(ROOT, REPLAY_FILES, REPLAY_PARTS)}"
    if not directory.exists():
        program = [sys.executable, str(ROOT / REPLAY_FILES[0])]
        work = directory.with_name(f"{directory.name}.{os.getpid()}")
        subprocess.run([*program, str(work)], check=True, stdout=subprocess.DEVNULL)
        _put(work, directory)
    (found,) = directory.glob("*.whl")
    return found


def _digest(tree: Path, names: Sequence[str], parts: Sequence[str]) -> str:
    """Of these files and of all in these folders that no build has left."""
    files = [tree / name for name in names]
    for part in parts:
        files += [path for path in (tree / part).rglob("*") if path.is_file() and not _is_built(path)]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path.relative_to(tree)} {path.stat().st_mode & 0o111} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _put(made: Path, directory: Path) -> None:
    try:
        made.rename(directory)
    except OSError:
        assert directory.exists(), "another test run has built it meanwhile"
        shutil.rmtree(made)


def install_wheel(found: Path, environment: Path, place: str) -> None:
    """Into a virtual environment that lies elsewhere when it is used: at ``place``."""
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "-q"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--disable-pip-version-check", str(found)], check=True)
    for program in ("nodectl", "clusterctl"):
        path = environment / "bin" / program
        _, _, rest = path.read_text().partition("\n")
        path.write_text(f"#!{place}/bin/python\n{rest}")


def _is_built(path: Path) -> bool:
    return any(path.match(pattern) for pattern in BUILT) or "__pycache__" in path.parts


def _build(tree: Path, directory: Path) -> None:
    """From a copy, since a build leaves files in its tree."""
    work = directory.with_name(f"{directory.name}.{os.getpid()}")
    shutil.rmtree(work, ignore_errors=True)
    source = work / "source"
    source.mkdir(parents=True)
    for part in PARTS:
        shutil.copytree(tree / part, source / part, ignore=shutil.ignore_patterns(*BUILT))
    if (tree / MANUALS).exists():
        shutil.copytree(tree / MANUALS, source / MANUALS)
    for name in FILES:
        shutil.copy2(tree / name, source / name)
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--disable-pip-version-check", "-w", str(work / "out"), str(source)], check=True)
    _put(work / "out", directory)
    shutil.rmtree(work)
