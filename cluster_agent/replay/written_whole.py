"""Files that are there whole or not at all: a run that is ended, or a full disk, leaves what was there before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster_agent.errors import ClusterError


@contextmanager
def folder(directory: str) -> Iterator[Path]:
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
        raise ClusterError(f"{directory}: {_reason(error)}; choose another --out") from None


@contextmanager
def one_file(path: str, option: str) -> Iterator[Path]:
    """A path next to ``path``, which gets that name at the end; ``ClusterError`` names the ``option``."""
    try:
        made = Path(f"{path}.writing-{os.getpid()}")
        try:
            if Path(path).is_dir():
                raise IsADirectoryError(None, "Is a directory")
            yield made
            made.replace(path)
        finally:
            made.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise ClusterError(f"{path}: {_reason(error)}; choose another {option}") from None


def _reason(error: OSError | ValueError) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
