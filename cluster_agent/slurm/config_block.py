"""What our commands write into the configuration of another manager of jobs, and how all of it is taken away again.

Files of ours lie in a folder of ours next to the configuration, which gets one block of lines between two marks.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cluster_agent.errors import ClusterError, WrongUseError
from foundation.directories import make_shared_directory

FOLDER: Final = "nodectl"
_END: Final = "# nodectl end\n"
_BLOCK: Final = re.compile(
    r"(?:\n# nodectl begin \([^\n]*; the line before had no end\)\n|# nodectl begin \([^\n]*\)\n).*?# nodectl end\n",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file before and after; None: it is not there."""

    path: Path
    before: str | None
    after: str | None

    def diff(self) -> str:
        """As ``diff -u`` prints it."""
        names = [str(self.path) if text is not None else "/dev/null" for text in (self.before, self.after)]
        before, after = ((text or "").splitlines(keepends=True) for text in (self.before, self.after))
        found = difflib.unified_diff(before, after, names[0], names[1])
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in found)

    def carry_out(self) -> None:
        """Write or remove the file; owner and mode of one that was there stay."""
        try:
            if self.after is None:
                self.path.unlink()
                return
            make_shared_directory(self.path.parent)
            made = self.path.with_name(f".{self.path.name}.nodectl")
            made.unlink(missing_ok=True)  # what a killed command has left
            try:
                self._write(made)
                made.replace(self.path)
            except OSError:
                made.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise ClusterError(f"{self.path}: cannot write it: {error.strerror}") from None

    def _write(self, made: Path) -> None:
        """A file with the text after; nobody else may read it before it has the owner and the mode of the one that was
        there, which may have a password."""
        text = self.after or ""
        status = self.path.stat() if self.before is not None else None
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(made, flags, 0o600), "wb") as file:
            file.write(text.encode("utf-8", "surrogateescape"))
            file.flush()
            if status:
                os.fchown(file.fileno(), status.st_uid, status.st_gid)
            mode = 0o755 if text.startswith("#!") else 0o644
            os.fchmod(file.fileno(), status.st_mode & 0o7777 if status else mode)


def without_block(conf: str) -> str:
    """The text of a configuration as the site wrote it."""
    return _BLOCK.sub("", conf)


def with_block(conf: str, lines: list[str], commands: str) -> str:
    """The same with these lines of ours at its end. ``commands``: which ones write and remove them."""
    own = without_block(conf)
    if not lines:
        return own
    begin = f"# nodectl begin ({commands})\n"
    if own and not own.endswith("\n"):
        begin = f"\n# nodectl begin ({commands}; the line before had no end)\n"
    return own + begin + "".join(lines) + _END


def read_conf(path: Path, manager: str) -> str:
    """The text of a configuration; bytes that are no UTF-8 come back as they are."""
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise WrongUseError(f"{path}: cannot read {manager}'s configuration: {error.strerror} (--conf)") from None


def carry_out(changes: list[FileChange], path: Path) -> None:
    """All of it: the configuration names scripts only while they are there. A folder of ours that is empty goes."""
    is_removal = any(change.after is None for change in changes)
    for change in sorted(changes, key=lambda one: (one.path == path) != is_removal):
        change.carry_out()
    folder = path.parent / FOLDER
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def text_of(path: Path) -> str | None:
    """The same for a file that may be missing: None."""
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ClusterError(f"{path}: cannot read it: {error.strerror}") from None
