"""What a calibration requests of the agent on its node, and the agent's answer: two small files, each replaced whole.

A node of a cluster has an agent, which keeps the node's cap and owns its knobs. A calibration does not replace it. It
requests one limit for all clocks, for a short time, and renews that; the agent's policies rest meanwhile, the cap stays
in force, and the agent's writer moves the clocks. When the request is not renewed, the policies decide again.

    calibration ── Request: limit, until when ──► agent      <lock's folder>/agent/calibration-request.json
                ◄── Answer: limit moved, cap ────            <lock's folder>/agent/calibration-answer.json

Times are of the node's own clock (``Ports.clock``). A file is believed if it is a plain one of root or of the reader.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from foundation.planted_links import replacing

T = TypeVar("T", bound=msgspec.Struct)

LEASE_NS: Final = 2_000_000_000
"""Ours: how long a request counts. It is renewed four times a second; of a killed calibration it ends in this time."""

MOST_BYTES: Final = 4096


class Request(msgspec.Struct, frozen=True):
    """Limit all clocks to ``khz`` until ``until_ns``."""

    khz: int
    until_ns: int


class Answer(msgspec.Struct, frozen=True):
    """What the agent did last. ``cap_mw``: the node's cap, -1: nobody caps it; ``most_mw``: the highest cap of use to
    it. ``is_capped``: the cap keeps some clock below ``khz``. ``trouble``: why a limit was not moved, in one line."""

    khz: int
    at_ns: int
    cap_mw: int
    most_mw: int
    is_capped: bool = False
    trouble: str = ""

    @property
    def has_full_power(self) -> bool:
        """Whether no cap below the node's highest is in force."""
        return self.cap_mw < 0 or self.cap_mw >= self.most_mw


class CalibrationPage:
    """Both files of a node; ``lock_path``: that of its ports."""

    def __init__(self, lock_path: str) -> None:
        directory, name = os.path.split(lock_path)
        folder, which = Path(directory, "agent"), name.removeprefix("lock")
        self.request_path = folder / f"calibration-request{which}.json"
        self.answer_path = folder / f"calibration-answer{which}.json"

    def request(self, request: Request) -> None:
        """Replace the request; ``OSError`` if it cannot be written."""
        _replace(self.request_path, request)

    def end(self) -> None:
        """Withdraw the request."""
        self.request_path.unlink(missing_ok=True)

    def requested(self, now_ns: int) -> Request | None:
        """The request in force; None without one."""
        found = _read(self.request_path, Request)
        return found if found and found.khz > 0 and now_ns < found.until_ns <= now_ns + 2 * LEASE_NS else None

    def answer(self, answer: Answer) -> None:
        """Replace the answer; ``OSError`` if it cannot be written."""
        _replace(self.answer_path, answer)

    def answered(self, now_ns: int) -> Answer | None:
        """The agent's answer, if it is new."""
        found = _read(self.answer_path, Answer)
        return found if found and now_ns - LEASE_NS < found.at_ns <= now_ns else None


def _replace(path: Path, content: msgspec.Struct) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with replacing(path, 0o666) as file:
        file.write(msgspec.json.encode(content))


def _read(path: Path, kind: type[T]) -> T | None:
    """The file's content; None if there is none, or none that can be believed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_uid not in (0, os.geteuid()):
            return None
        return msgspec.json.decode(os.read(descriptor, MOST_BYTES), type=kind)
    except (OSError, msgspec.DecodeError):
        return None
    finally:
        os.close(descriptor)
