"""What knobs are called in a save: a GPU's by the card's UUID, all others as in the run.

A run numbers its cards as the driver does, and so calls a knob "gpu/1/power_limit_mw". The next run may number them
otherwise: a card that is lost, reset, added or passed through to a guest moves the others. A save that called cards by
number would put one card's limit back to another. (docs/restore.md has the table.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from nodectl.knobs.api import Knob
from nodectl.knobs.recipe import NvmlRecipe
from nodectl.write.places import SplitSave
from nodectl.write.saves import Captured, Save

T = TypeVar("T")


def saved_name(knob: Knob) -> str:
    """The name of a knob in a save."""
    recipe = knob.recipe() if knob.name.startswith("gpu/") else None
    if not isinstance(recipe, NvmlRecipe) or not recipe.uuid:
        return knob.name
    kind, _, what = knob.name.split("/", 2)
    return f"{kind}/{recipe.uuid}/{what}"


class DeviceNames:
    """The names of one run's knobs, in this run and in a save."""

    def __init__(self, knobs: Iterable[Knob]) -> None:
        names = {knob.name: saved_name(knob) for knob in knobs}
        self._saved = {name: saved for name, saved in names.items() if saved != name}
        self._here = {saved: name for name, saved in self._saved.items()}

    def saved(self, name: str) -> str:
        """In a save; a name of no knob of this run stays."""
        return self._saved.get(name, name)

    def here(self, name: str) -> str:
        """In this run; that of a card that this run does not have stays as in the save."""
        return self._here.get(name, name)

    def all_saved(self, values: Mapping[str, T]) -> dict[str, T]:
        """The values under the names of a save."""
        if not self._saved:
            return dict(values)
        return {self.saved(name): value for name, value in values.items()}

    def all_here(self, values: Mapping[str, T]) -> dict[str, T]:
        """The values under the names of this run. Where a save of 0.2.0 and a later one have the same knob, the older
        capture counts: it comes first."""
        found: dict[str, T] = {}
        for name, value in values.items():
            found.setdefault(self.here(name), value)
        return found

    def are_old(self, names: Iterable[str]) -> bool:
        """Whether a save of 0.2.0 has written some of these names, which call a card by its number."""
        return any(name in self._saved for name in names)


class NamedSave:
    """``Save`` for a run: it takes the run's names and writes those of ``names``."""

    def __init__(self, save: Save | SplitSave, names: DeviceNames) -> None:
        self._save, self._names = save, names

    def capture(self, values: Mapping[str, str]) -> None:
        """As ``Save.capture``."""
        self._save.capture(self._names.all_saved(values))

    def wrote(self, values: Mapping[str, int]) -> None:
        """As ``Save.wrote``."""
        self._save.wrote(self._names.all_saved(values))

    def limit_restores(self, values: Mapping[str, int]) -> None:
        """As ``Save.limit_restores``."""
        self._save.limit_restores(self._names.all_saved(values))

    def restored(self, knobs: Sequence[str]) -> None:
        """As ``Save.restored``."""
        self._save.restored([self._names.saved(name) for name in knobs])

    def compact(self, knobs: Mapping[str, Captured], restore_limits: Mapping[str, int]) -> None:
        """As ``Save.compact``; called at every write, and seldom with anything to do."""
        if self._save.is_large:
            self.rewrite(knobs, restore_limits)

    def replace(self, knobs: Mapping[str, Captured], restore_limits: Mapping[str, int]) -> None:
        """As ``Save.replace``."""
        self._save.replace(self._names.all_saved(knobs), self._names.all_saved(restore_limits))

    def rewrite(self, knobs: Mapping[str, Captured], restore_limits: Mapping[str, int]) -> None:
        """As ``Save.rewrite``."""
        self._save.rewrite(self._names.all_saved(knobs), self._names.all_saved(restore_limits))

    def remove(self) -> None:
        """As ``Save.remove``."""
        self._save.remove()

    def close(self) -> None:
        """As ``Save.close``."""
        self._save.close()
