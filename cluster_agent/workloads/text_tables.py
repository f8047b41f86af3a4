"""Tables as text files, packed or not; errors say the file and how to fix it."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cluster_agent.workloads.swf import TraceError
from foundation.shell.plain_text import TextError, foreign_text, rows_by_name, unpacked

FIRST_BYTES: Final = 1 << 14
"""Ours: the longest header of a table."""


def first_line(path: str) -> str:
    """The first line that is not empty, without reading the rest of a file that is not packed by bzip2 or xz;
    ``TraceError`` if there is no such file."""
    try:
        with open(path, "rb") as file:
            raw = file.read(FIRST_BYTES)
            if raw.startswith(b"\x1f\x8b"):
                raw = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(raw, FIRST_BYTES)
            elif raw.startswith((b"BZh", b"\xfd7zXZ")):
                raw = unpacked(raw + file.read())
        text = foreign_text(raw[: len(raw) & ~3], "replace")  # whole characters, also of UTF-32
    except (OSError, zlib.error) as error:
        raise _unreadable(path, error) from None
    return next((line for line in text.split("\n") if line.strip()), "")


def text_of(path: str) -> tuple[str, str]:
    """The whole text, and the SHA-256 of the file as it is on disk. What is not UTF-8 in it (a job's name of an older
    system) is replaced."""
    try:
        raw = Path(path).read_bytes()
        return foreign_text(raw, "replace"), hashlib.sha256(raw).hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from None


def is_eurora(path: str) -> bool:
    """Whether it is a table of Eurora's jobs (``eurora``), by its ending or by its first line."""
    return path.endswith(".parquet") or first_line(path).startswith("job,queue,submit,")


def is_sacct(path: str) -> bool:
    """Whether it is the text of sacct (``sacct``), by its first line: it names the columns, or it has so many bars that
    nothing else can have been meant."""
    line = first_line(path)
    if line.lstrip().startswith(";"):  # a comment of a job log
        return False
    return line.count("|") >= 3 or re.search(r"\bjobid(raw)?\b", line, re.IGNORECASE) is not None


def has_nodes(path: str) -> bool:
    """Whether it is a table of jobs with nodes, not a log of jobs with processors."""
    return is_eurora(path) or is_sacct(path)


def rows_of(path: str) -> tuple[Iterator[tuple[int, dict[str, str]]], str]:
    """The rows of a CSV with a header, each with its line number; and the file's SHA-256."""
    text, sha256 = text_of(path)
    try:
        header, rows = rows_by_name(text)
    except OSError as error:
        raise _unreadable(path, error) from None
    if not header:
        raise TraceError(f"{path}: it is empty; fetch it again")
    return _named(path, rows), sha256


def _named(path: str, rows: Iterator[tuple[int, dict[str, str]]]) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        yield from rows
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: Exception) -> TraceError:
    reason = getattr(error, "strerror", None) or error
    return TraceError(
        f"{path}: {reason}" + ("" if isinstance(error, TextError) else "; name a readable trace or table")
    )
