"""The energy preference (EPP) of a cpufreq policy: what its processor weighs more, speed or energy.

Processors that choose clocks by themselves take a hint, ``energy_performance_preference``: a word of the list in
``energy_performance_available_preferences``, or a number from 0 (speed) to 255 (energy) where somebody has set one.
Drivers intel_pstate, intel_cpufreq and amd-pstate-epp have it. It is a preference and not a limit: no value is
"looser" than another, and what a site chooses is written as it is.

Values are words, so this agent counts them: 1, 2, ... are the places in the driver's list, and a number that somebody
else has set is ``RAW`` more than itself. Captured and put back is the text that was found.

Where the driver has governors of its own (intel_pstate, amd-pstate-epp), the governor ``performance`` refuses any other
word with EBUSY, and the file shows "performance" whatever was set before. What is to be put back is then unknown, so
nothing is captured and nothing is written: the knob is listed with that reason. If the governor changes during a run, a
write or a restore is refused with that reason, and tried again.
Sources: Linux Documentation/admin-guide/pm/{intel_pstate,amd-pstate}.rst; drivers/cpufreq/{intel_pstate,amd-pstate}.c.
"""

from __future__ import annotations

from collections.abc import Sequence

from nodectl.knobs.api import KnobError, Reason
from nodectl.knobs.attribute_file import read_text, write_text
from nodectl.knobs.clock_limit import CPUFREQ, GOVERNOR_PERIOD_S
from nodectl.knobs.kind import Domain, KnobKind, file_finding
from nodectl.knobs.recipe import FileRecipe
from pmu.driver_values import digits
from pmu.findings import read_or_none
from pmu.layout import KnobRange, Layout
from pmu.ports import Files

RAW = 1000
"""Ours: lists have a handful of words."""

DEFAULT = "default"
"""In every list: writing it sets the word that the processor had at boot, which is then read back."""

OWN_GOVERNORS = ("intel_pstate", "amd-pstate-epp")
"""Drivers whose governor ``performance`` refuses other preferences."""


class EnergyPreference:
    """``energy_performance_preference`` of one cpufreq policy."""

    unit = "preference"
    latency_s = GOVERNOR_PERIOD_S

    def __init__(self, files: Files, policy: int) -> None:
        self.name = f"epp/policy{policy}/preference"
        self.policy = policy
        self._files = files
        self._dir = f"{CPUFREQ}/policy{policy}"
        self.path = f"{self._dir}/energy_performance_preference"
        self.words = tuple(read_text(files, f"{self._dir}/energy_performance_available_preferences").split())

    def read(self) -> str:
        """The preference in force: a word, or a number that somebody has set. Refused while the governor hides it."""
        if why := self.why_fixed():
            raise KnobError(f"{self.path}: {why}", "refused", "governor")
        return read_text(self._files, self.path)

    def set(self, value: int) -> None:
        """Ask for the word at this place of the list."""
        if not 1 <= value <= len(self.words):
            raise KnobError(f"{self.path}: there are {len(self.words)} preferences, none is number {value}")
        self._write(self.words[value - 1])

    def read_back(self) -> int | None:
        """The place of the word in force."""
        text = read_text(self._files, self.path)
        number = self.number(text)
        if number is None:
            raise KnobError(f"{self.path} has {text!r}, which is not in the driver's list")
        return number

    def restore(self, captured: str) -> None:
        """Ask for the captured text again."""
        self._write(captured)

    def number(self, text: str) -> int | None:
        """The place of a word; numbers are counted from ``RAW``."""
        number = digits(text)
        if number is not None:
            return RAW + number
        return 1 + self.words.index(text) if text in self.words else None

    def shown(self, value: int) -> str:
        """The word, or the number that was set."""
        return self.words[value - 1] if 1 <= value <= len(self.words) else str(value - RAW)

    def matches(self, requested: int, present: int) -> bool:
        """Words are kept; "default" becomes another one."""
        return requested == present or self.shown(requested) == DEFAULT

    def recipe(self) -> FileRecipe:
        """The words of the list, one of which becomes another; a governor of the driver's own may hide them."""
        own = read_or_none(self._files, f"{self._dir}/scaling_driver") in OWN_GOVERNORS
        hidden_by = (f"{self._dir}/scaling_governor", "performance") if own else None
        any_word = 1 + self.words.index(DEFAULT) if DEFAULT in self.words else 0
        return FileRecipe(self.path, words=self.words, raw=RAW, any_word=any_word, hidden_by=hidden_by)

    def overruled(self, value: int) -> tuple[Reason, str]:
        """Never: what is read back is the preference in force."""
        return "", ""

    def explain(self, requested: int, present: int | None) -> tuple[Reason, str]:
        """A governor of the driver's own may fix it."""
        why = self.why_fixed()
        return ("governor", why) if why else ("", "")

    def range(self, layout: Layout) -> KnobRange:
        """Every word of the list."""
        cpus = next((domain.cpus for domain in layout.domains if self.policy in domain.policies), ())
        places = tuple(range(1, len(self.words) + 1))
        return KnobRange(self.name, "epp", 1, len(places), places, cpus, self.words)

    def why_fixed(self) -> str:
        """Why no other preference can be set now; empty if one can."""
        driver = read_or_none(self._files, f"{self._dir}/scaling_driver")
        if driver in OWN_GOVERNORS and read_or_none(self._files, f"{self._dir}/scaling_governor") == "performance":
            return f"governor performance of {driver} allows no other preference than performance"
        return ""

    def _write(self, text: str) -> None:
        try:
            write_text(self._files, self.path, text)
        except KnobError as error:
            why = self.why_fixed() if error.status == "refused" else ""
            if not why:
                raise
            raise KnobError(f"{error}: {why}", "refused", "governor") from error


def _find(files: Files, layout: Layout) -> tuple[Sequence[str], str]:
    policies = [policy for domain in layout.domains for policy in domain.policies]
    found = [at for at in policies if files.exists(f"{CPUFREQ}/policy{at}/energy_performance_preference")]
    why = "no cpufreq policy has energy_performance_preference: its driver (see frequency) or processor takes no hint"
    return [f"epp/policy{at}/preference" for at in found], why


KIND = KnobKind(
    pattern=r"epp/policy(?P<policy>\d+)/preference",
    name="epp/*/preference",
    find=_find,
    open=lambda ports, name: EnergyPreference(ports.files, int(name["policy"])),
    look=file_finding,
    domain=Domain(name="epp", what="energy preferences", rests_on="", range_of=EnergyPreference.range),
)
