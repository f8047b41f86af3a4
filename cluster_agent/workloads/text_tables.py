"""Tables as text files, packed or not; errors say the file and how to fix it."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from cluster_agent.workloads.swf import TraceError
from foundation.shell.plain_text import TextError, foreign_text, rows_by_name, unpacked

FIRST_BYTES: Final = 1 << 14
"""Ours: the longest header of a table."""


LINES_ABOVE: Final = 10
"""Ours: a login shell and a job manager say no more than this above a table."""


def first_line(path: str) -> str:
    """The first line that is not empty; ``TraceError`` if there is no such file."""
    return next((line for line in _beginning(path).split("\n") if line.strip()), "")


def _beginning(path: str) -> str:
    """The first lines, without reading the rest of a file that is not packed by bzip2 or xz."""
    try:
        with open(path, "rb") as file:
            raw = file.read(FIRST_BYTES)
            if raw.startswith(b"\x1f\x8b"):
                raw = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(raw, FIRST_BYTES)
            elif raw.startswith((b"BZh", b"\xfd7zXZ")):
                raw = unpacked(raw + file.read())
        return foreign_text(raw[: len(raw) & ~3], "replace")  # whole characters, also of UTF-32
    except (OSError, zlib.error) as error:
        raise _unreadable(path, error) from None


def text_of(path: str) -> tuple[str, str]:
    """The whole text, and the SHA-256 of the file as it is on disk. What is not UTF-8 in it (a job's name of an older
    system) is replaced."""
    import hashlib  # as read_swf does

    try:
        raw = Path(path).read_bytes()
        return foreign_text(raw, "replace"), hashlib.sha256(raw).hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from None


def is_eurora(path: str) -> bool:
    """Whether it is a table of Eurora's jobs (``eurora``), by its ending or by its first line."""
    return path.endswith(".parquet") or first_line(path).startswith("job,queue,submit,")


def is_sacct(path: str) -> bool:
    """Whether it is the text of sacct (``sacct``), by the line that names its columns, or because its first line has so
    many bars that nothing else can have been meant. ``TraceError`` if it is what sacct writes and nobody reads here."""
    lines = _beginning(path).split("\n")
    line = next((line.strip() for line in lines if line.strip()), "")
    if line.startswith(";"):  # a comment of a job log
        return False
    if line.startswith(("{", "[", "---", "jobs:")):
        raise TraceError(f"{path}: it is JSON or YAML, which is not read here: export it with sacct --parsable2")
    return line.count("|") >= 3 or _names_job(lines[header_at(lines)])


def header_at(lines: Sequence[str]) -> int:
    """Which line names the columns of sacct: the first that is not empty, unless it is a message (of sacct on stderr,
    of a login) and one of the next few does."""
    filled = list(islice((at for at, line in enumerate(lines) if line.strip()), LINES_ABOVE + 1))
    if not filled or _names_job(lines[filled[0]]):
        return filled[0] if filled else 0
    return next((at for at in filled[1:] if _names_job(lines[at]) and "submit" in lines[at].lower()), filled[0])


def _names_job(line: str) -> bool:
    return re.search(r"\bjobid(raw)?\b", line, re.IGNORECASE) is not None


def is_shared(path: str) -> bool:
    """Whether it is a table of jobs that name an application, and may share nodes (``sharing.gpu_jobs``)."""
    return first_line(path).replace(" ", "").startswith("job,application,batch_size,")


def has_nodes(path: str) -> bool:
    """Whether it is a table of jobs with nodes, not a log of jobs with processors."""
    return is_eurora(path) or is_shared(path) or is_sacct(path)


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
