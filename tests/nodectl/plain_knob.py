"""A knob that is a number in memory, with everything that hardware may do to a write."""

from __future__ import annotations

from dataclasses import dataclass, field

from nodectl.knobs.api import Knob, KnobError, Reason, WholeNumber


@dataclass
class PlainKnob(WholeNumber, Knob):
    """``nodectl.knobs.api.Knob``. ``text`` is what it is at: digits, or "disabled" for a released state.

    ``most``: it takes no more than this, ``most_elsewhere``: another limit.
    ``step``: it rounds down to multiples. ``why``: what ``explain`` answers.
    ``fails``: by the name of a method, what it raises. ``log``: all that was put, in order.
    """

    name: str = "a/limit_mw"
    text: str = "3000"
    most: int = 1 << 40
    step: int = 1
    has_getter: bool = True
    why: tuple[Reason, str] = ("", "")
    most_elsewhere: int = 1 << 40
    fails: dict[str, Exception] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    explained: list[tuple[int, int | None]] = field(default_factory=list)
    unit = "mw"
    latency_s = 0.1

    def _may(self, method: str) -> None:
        if method in self.fails:
            raise self.fails[method]

    def read(self) -> str:
        self._may("read")
        return self.text if self.has_getter else "unknown"

    def set(self, value: int) -> None:
        self._may("set")
        self.log.append(str(value))
        self.text = str(min(value, self.most) // self.step * self.step)

    def read_back(self) -> int | None:
        self._may("read_back")
        if not self.has_getter:
            return None
        return int(self.text) if self.text.isdigit() else 0

    def restore(self, captured: str) -> None:
        self._may("restore")
        if captured.isdigit():
            self.set(int(captured))
        else:
            self.log.append(captured)
            self.text = captured

    def matches(self, asked: int, held: int) -> bool:
        return asked // self.step * self.step == held

    def overruled(self, value: int) -> tuple[Reason, str]:
        is_lower = value > self.most_elsewhere
        return ("second RAPL interface", f"{self.most_elsewhere} is in force") if is_lower else ("", "")

    def explain(self, asked: int, held: int | None) -> tuple[Reason, str]:
        self._may("explain")
        self.explained.append((asked, held))
        return self.why


REFUSED = KnobError("a/limit_mw: busy", "refused", "lock bit")
GONE = KnobError("a/limit_mw: gone", "vanished")
HOT: tuple[Reason, str] = ("thermal", "it is hot")
