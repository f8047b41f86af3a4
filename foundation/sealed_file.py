"""Files of tables: text whose last line is the SHA-256 of all before it.

A file that was cut off, edited or damaged is noticed by that line, so no policy uses half a table.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from foundation.digest import sha256_hex
from foundation.shell.errors import NodectlError
from foundation.shell.plain_text import read_text

SEAL: Final = "# sha256 "
MOST_BYTES: Final = 64 << 20
"""Ours: a thousand times what a large node needs."""


class SealedFileError(NodectlError):
    """A file of a table cannot be read, is damaged or does not apply; one line that names it."""


def sealed(text: str) -> str:
    """The text with its last line."""
    return f"{text}{SEAL}{sha256_hex(text.encode())}\n"


def write_whole(path: Path, content: str | bytes, mode: int = 0o644, is_synced: bool = True) -> None:
    """A file that is there whole or not at all (rename(2)). Not ``is_synced``: after a power cut it may be damaged."""
    import tempfile  # and with it bz2, lzma and random, where most processes only read such files

    temporary = ""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = file.name
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if is_synced:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise SealedFileError(f"{path}: cannot be written: {error.strerror}") from None


def sealed_text(path: Path) -> str:
    """The text of a sealed file without its last line."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise SealedFileError(f"{path}: is no table: it has more than {MOST_BYTES >> 20} MiB")
        whole = read_text(path)
    except OSError as error:
        raise SealedFileError(f"{path}: cannot be read: {error.strerror}") from None
    return text_of(whole, str(path))


def text_of(whole: str, name: str) -> str:
    """The same of a content that was read already; ``name`` is for the error."""
    text, seal, digest = whole.rpartition(SEAL)
    if not seal or not digest.endswith("\n"):
        raise SealedFileError(f"{name}: is no table, or its end is missing (no sha256 line)")
    if digest.strip() != sha256_hex(text.encode()):
        raise SealedFileError(f"{name}: was changed or damaged: its sha256 differs")
    return text
