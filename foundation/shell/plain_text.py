"""Text from elsewhere: read from files of any encoding (``foundation.foreign_text``), made safe for terminals and logs.

A job's name, a node's details, a label in sysfs: whoever writes these chooses the characters. Written to a terminal, an
escape sequence moves the cursor, sets the title or hides a line; a newline starts a line that looks like one of ours,
and in the journal of systemd ``<3>`` at its start gives it a priority. Characters that reverse the direction of text
hide what a line says. So every character that is not printable is shown as its escape, ``\\x1b``, before it gets there.
JSON keeps the data: there it is the same character, written as ``\\u001b``.
Sources: ECMA-48; Unicode TR 36 (bidirectional text); sd-daemon(3).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from foundation.foreign_text import TextError, fields_by_line, foreign_text, rows_by_name, unpacked, utf8

__all__ = [
    "TextError", "echo", "echo_block", "fields_by_line", "foreign_text", "json_text", "plain", "read_text", "read_utf8",
    "rows_by_name", "unpacked", "utf8",
]  # fmt: skip

_UNUSUAL: Final = re.compile(r"[^ -~]")
_UNUSUAL_IN_JSON: Final = re.compile(r"[^ -~\n]")


def read_text(path: str | Path) -> str:
    """The text of a file; an ``OSError`` whose ``strerror`` says in one line why there is none."""
    return foreign_text(Path(path).read_bytes())


def read_utf8(path: str | Path) -> bytes:
    """The same as bytes, for parsers that take these and say themselves where they are wrong."""
    return utf8(Path(path).read_bytes())


def plain(text: str) -> str:
    """One line of text without control characters; what is printable stays as it is."""
    return text if text.isprintable() else _UNUSUAL.sub(_escaped, text)


def echo(*lines: str, to_stderr: bool = False) -> None:
    """Print these lines to people, each made plain."""
    print("\n".join(map(plain, lines)), file=sys.stderr if to_stderr else sys.stdout, flush=True)


def say(line: str) -> None:
    """Print this line to people next to what the command prints, on stderr."""
    echo(line, to_stderr=True)


def echo_block(text: str) -> None:
    """Print text of several lines, such as a table, in which foreign parts are plain already."""
    echo(*text.split("\n"))


def json_text(value: Any, indent: int = 0) -> str:
    """The value as JSON, which a terminal shows as it is."""
    encoded = msgspec.json.encode(value)
    text = (msgspec.json.format(encoded, indent=indent) if indent else encoded).decode()
    return _UNUSUAL_IN_JSON.sub(_escaped_in_json, text)


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def _escaped_in_json(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
