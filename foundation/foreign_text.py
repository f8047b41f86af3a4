"""Text from other programs: unpacked, without its byte order mark, as UTF-8, and split into lines and fields.

Windows editors begin UTF-8 with a byte order mark, PowerShell's ``>`` writes UTF-16, and archives pack with gzip, bzip2
or xz. All of that is read. What is not read is refused by its name. Nothing here opens a file: whoever has one gives
its bytes, and ``TextError`` is an ``OSError``, so that a reader says in one place why it cannot read.
Sources: Unicode 15, §23.8 (byte order mark); RFC 1952 (gzip); RFC 4180 (CSV).
"""

from __future__ import annotations

import codecs
import errno
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

MOST_BYTES: Final = 4 << 30
"""Ours: no text unpacks to more; the largest public job logs have 0.5 GiB."""

_PACKED: Final = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz"}
_NOT_READ: Final = {
    b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"7z\xbc\xaf": "7z", b"\x1f\x9d": "compress",
    b"\x04\x22\x4d\x18": "lz4",
}  # fmt: skip
_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
"""In this order, since one of UTF-32 begins like one of UTF-16."""


class TextError(OSError):
    """These bytes are no text that can be read; ``strerror`` says why in one line."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EILSEQ, reason)


def foreign_text(raw: bytes, errors: str = "strict") -> str:
    """The text; its lines end with ``\\n``. ``errors``: as of ``bytes.decode``."""
    raw = utf8(raw)
    try:
        text = raw.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise TextError(f"line {line} is not UTF-8 text (byte 0x{raw[error.start]:02x}): save it as UTF-8") from None
    return text.replace("\r\n", "\n") if "\r" in text else text


def utf8(raw: bytes) -> bytes:
    """The same without its packing and byte order mark, in UTF-8; a text of which every line ends with ``\\r`` alone,
    with ``\\n``."""
    raw = unpacked(raw)
    for mark, name in _MARKS:
        if raw.startswith(mark):
            raw = _from(name, raw)
            break
    else:
        raw = raw.removeprefix(codecs.BOM_UTF8)
        _refuse_unmarked(raw)
    return raw.replace(b"\r", b"\n") if b"\n" not in raw and b"\r" in raw else raw


def unpacked(raw: bytes) -> bytes:
    """The same without the packing of gzip, bzip2 or xz."""
    for magic, name in _PACKED.items():
        if raw.startswith(magic):
            return _unpacked(raw, name)
    for magic, name in _NOT_READ.items():
        if raw.startswith(magic):
            raise TextError(f"it is packed with {name}, which is not read here: unpack it, or pack it with gzip")
    return raw


def fields_by_line(text: str) -> Iterator[tuple[int, list[str]]]:
    """The fields of every line, and the line's number; a line that is empty, or of empty fields, has none.

    Commas separate them; where the first line has none, semicolons or tabs do, as spreadsheets write them in countries
    with a decimal comma. Empty fields beyond those of the first line are a spreadsheet's empty columns: left out.
    A field in quotes may have separators, but no end of line: so a quote that nobody closed costs one line, which the
    ``TextError`` names, and not all that follow.
    """
    mark, named, columns = ",", False, 0
    for number, line in enumerate(text.split("\n"), 1):
        if not named and line and line[0] != "#":
            if line.rstrip().lower() in _SEPARATORS:
                mark, named = line[4], True
                continue
            mark, named = next((one for one in ",;\t" if one in line), ","), True
        row = line.split(mark) if '"' not in line else _quoted(number, line, mark)
        if named:
            columns = columns or _width(row, 0)
            del row[_width(row, columns) :]
        yield number, row if any(row) else []


_SEPARATORS: Final = ("sep=,", "sep=;", "sep=\t")
"""First lines that tell Excel what separates the fields."""


def _width(row: list[str], least: int) -> int:
    """How many fields there are without empty ones at the end, but as many as ``least``."""
    width = len(row)
    while width > least and not row[width - 1].strip():
        width -= 1
    return width


def _quoted(number: int, line: str, mark: str) -> list[str]:
    import csv  # only here: a replay of a job log is short, and imports would double its time

    try:
        return next(csv.reader([line], delimiter=mark, strict=True))
    except csv.Error as error:
        raise TextError(
            f"line {number}: its quotes are not closed, or text follows one ({error}): correct it"
        ) from None


def rows_by_name(text: str, comment: str = "") -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
    """The columns that the first line names, and the rows below it with their line numbers; none for an empty line.

    What a short row lacks is empty. A row of more fields (a decimal comma, a thousands separator) is a ``TextError``,
    as is a name that occurs twice. ``comment``: lines that begin with it are passed over.
    """
    lines = ((number, row) for number, row in fields_by_line(text) if not (comment and row and row[0][:1] == comment))
    first, header = next(((number, [word.strip() for word in row]) for number, row in lines if row), (1, []))
    if twice := [name for at, name in enumerate(header) if name in header[:at]]:
        raise TextError(f"line {first}: the column {twice[0]!r} occurs twice: delete one")
    return header, _rows(header, lines)


def _rows(header: list[str], lines: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, dict[str, str]]]:
    for number, row in lines:
        if len(row) > len(header):
            raise TextError(f"line {number}: it has {len(row)} fields, and the first line names {len(header)} columns")
        if row:
            yield number, dict.fromkeys(header, "") | dict(zip(header, row, strict=False))


def _from(name: str, raw: bytes) -> bytes:
    try:
        return raw.decode(name).removeprefix("\ufeff").encode()
    except UnicodeError:  # half a character, or half of a pair
        raise TextError(f"it begins as {name.upper()} and does not go on so: save it as UTF-8") from None


def _refuse_unmarked(raw: bytes) -> None:
    """Every second of the first bytes is 0: UTF-16 of Latin text."""
    if len(raw) >= 4 and (raw[0] == 0) != (raw[1] == 0) and (raw[0] == 0) == (raw[2] == 0) != (raw[3] == 0):
        name = "UTF-16BE" if raw[0] == 0 else "UTF-16LE"
        raise TextError(f"it is {name} without a byte order mark: convert it with iconv -f {name} -t UTF-8")


def _unpacked(raw: bytes, name: str) -> bytes:
    new, problems = _unpacker(name)
    parts: list[bytes] = []
    left = MOST_BYTES
    while raw:  # files of several members are one text (cat a.gz b.gz)
        one = new()
        try:
            parts.append(one.decompress(raw, left + 1))
        except problems as error:
            raise TextError(f"damaged {name} file ({error}); fetch it again") from None
        left -= len(parts[-1])
        if left < 0:
            raise TextError(f"it unpacks to more than {MOST_BYTES >> 30} GiB, which no text here has")
        if not one.eof:
            raise TextError(f"damaged {name} file (it ends early); fetch it again")
        raw = one.unused_data.lstrip(b"\0")  # padding
    return b"".join(parts)


def _unpacker(name: str) -> tuple[Callable[[], Any], tuple[type[Exception], ...]]:
    """What makes an unpacker, and what it raises. Modules are imported here: few texts are packed."""
    if name == "gzip":
        return lambda: zlib.decompressobj(16 + zlib.MAX_WBITS), (zlib.error,)
    try:
        import bz2
        import lzma
    except ImportError:  # a Python that was built without their libraries
        raise TextError(f"it is packed with {name}, which this Python cannot unpack: pack it with gzip") from None
    if name == "bzip2":
        return bz2.BZ2Decompressor, (OSError, ValueError)
    return lzma.LZMADecompressor, (lzma.LZMAError, ValueError)
