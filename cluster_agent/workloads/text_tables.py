"""Tables as text files, plain or gzipped; errors say the file and how to fix it."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from pathlib import Path

from cluster_agent.workloads.swf import GZIP_MAGIC, TraceError

FIRST_LINE_BYTES = 1 << 14
"""Ours: the longest header of a table."""


def first_line(path: str) -> str:
    """The first line, without reading the rest; ``TraceError`` if there is no such file."""
    try:
        with open(path, "rb") as file:
            is_zipped = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            file.seek(0)
            raw = gzip.GzipFile(fileobj=file).read(FIRST_LINE_BYTES) if is_zipped else file.read(FIRST_LINE_BYTES)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(path, error) from None
    except OSError as error:
        raise _unreadable(path, error) from None
    return raw.decode("utf-8", "replace").partition("\n")[0].rstrip("\r")


def text_of(path: str) -> tuple[str, str]:
    """The whole text, and the SHA-256 of the file as it is on disk."""
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None
    sha256 = hashlib.sha256(raw).hexdigest()
    if raw.startswith(GZIP_MAGIC):
        try:
            raw = gzip.decompress(raw)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise _damaged(path, error) from None
    return raw.decode("utf-8", "replace"), sha256


def is_eurora(path: str) -> bool:
    """Whether it is a table of Eurora's jobs (``eurora``), by its ending or by its first line."""
    return path.endswith(".parquet") or first_line(path).startswith("job,queue,submit,")


def is_sacct(path: str) -> bool:
    """Whether it is the text of sacct (``sacct``): its first line names the columns."""
    return "JobID" in first_line(path).split("|")


def has_nodes(path: str) -> bool:
    """Whether it is a table of jobs with nodes, not a log of jobs with processors."""
    return is_eurora(path) or is_sacct(path)


def rows_of(path: str) -> tuple[Iterator[tuple[int, dict[str, str]]], str]:
    """The rows of a CSV with a header, each with its line number; and the file's SHA-256."""
    import csv  # only here: a replay of a job log is short, and imports would double its time

    text, sha256 = text_of(path)
    reader = csv.DictReader(io.StringIO(text))
    if not reader.fieldnames:
        raise TraceError(f"{path}: it is empty; fetch it again")
    return ((reader.line_num, row) for row in reader), sha256


def _damaged(path: str, error: Exception) -> TraceError:
    return TraceError(f"{path}: damaged gzip file ({error}); fetch it again")


def _unreadable(path: str, error: OSError) -> TraceError:
    return TraceError(f"{path}: {error.strerror or error}; name a readable trace or table")
