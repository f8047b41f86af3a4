"""Files that are there whole or not at all: a run that is ended, or a full disk, leaves what was there before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster_agent.errors import ClusterError


@contextmanager
def folder(directory: str, option: str = "--out") -> Iterator[Path]:
    """An empty folder. What is written there is moved to ``directory`` at the end, and replaces files of these names.

    ``ClusterError`` if anything cannot be written.
    """
    # absolute, since pyarrow takes a relative path with a colon for an address
    root = Path(directory).absolute()
    try:
        root.mkdir(parents=True, exist_ok=True)
        made = root / f".writing-{os.urandom(4).hex()}"  # tempfile takes as long to import as all files to write
        made.mkdir()
        try:
            yield made
            for file in sorted(made.iterdir()):
                file.replace(root / file.name)
        finally:
            for file in made.iterdir():
                file.unlink()
            made.rmdir()
    except (OSError, ValueError) as error:  # ValueError: a NUL in a path
        raise ClusterError(f"{directory}: {_reason(error)}; choose another {option}") from None


@contextmanager
def one_file(path: str, option: str) -> Iterator[Path]:
    """A path next to ``path``, which gets that name at the end; ``ClusterError`` names the ``option``.

    A terminal, a pipe or another device is written to as it is: a rename would put a file in its place.
    """
    try:
        at = Path(path)
        if at.exists() and not (at.is_file() or at.is_dir()):
            yield at
            return
        target = os.path.realpath(at)  # a link, such as /dev/stdout, stays
        made = Path(f"{target}.writing-{os.getpid()}")
        try:
            if at.is_dir():
                raise IsADirectoryError(None, "Is a directory")
            yield made
            made.replace(target)
        finally:
            made.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise ClusterError(f"{path}: {_reason(error)}; choose another {option}") from None


def check_one_file(path: str, option: str) -> None:
    """``ClusterError`` before a long run, in place of one after it, if the file cannot be written."""
    if Path(path).is_dir():
        raise ClusterError(f"{path}: Is a directory; choose another {option}")
    made = Path(f"{path}.writing-{os.getpid()}")
    try:
        made.touch()
        made.unlink()
    except (OSError, ValueError) as error:
        raise ClusterError(f"{path}: {_reason(error)}; choose another {option}") from None


def check_folder(directory: str, option: str = "--out") -> None:
    """The same for a folder; it makes none."""
    try:
        at = Path(directory).absolute()
        there = next(one for one in (at, *at.parents) if one.exists())
        made = there / f".writing-{os.urandom(4).hex()}"
        made.mkdir()
        made.rmdir()
    except (OSError, ValueError) as error:
        raise ClusterError(f"{directory}: {_reason(error)}; choose another {option}") from None


def _reason(error: OSError | ValueError) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
