"""Where the saves of a node are.

A save belongs to the node and not to a state directory: whoever comes next finds it. It is next to the node's lock in
/run, which a boot empties as it does the settings. What an SCMI controller was given outlives the kernel, so those
knobs have a save in /var/lib, which is applied after a boot too. An emulated node has both in one file next to its own
lock; a node that only this process can reach (no lock) has one in the state directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from nodectl.knobs.recipe import Recipe
from nodectl.write.saves import SAVE_NAME, Captured, Save

LASTING_DIRECTORY: Final = "/var/lib/nodectl"
LASTING_NAME: Final = "captured-controllers.jsonl"
LASTING_BOOT: Final = "every boot"
"""In place of a boot id in the save of knobs whose device outlives the kernel."""

REAL_LOCK: Final = "/run/nodectl/lock"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SavePlaces:
    """``node``: the save. ``lasting``: that of knobs whose device outlives the kernel, where it is another file.
    ``earlier``: where a version before this one had it, in the state directory."""

    node: str
    lasting: str = ""
    earlier: str = ""

    def with_boots(self, boot_id: str) -> list[tuple[str, str]]:
        """Every place, each with the boot that its save must be of; the oldest captures first."""
        places = [(self.earlier, boot_id), (self.node, boot_id), (self.lasting, LASTING_BOOT)]
        return [(path, boot) for path, boot in places if path]


def save_path(state_dir: str) -> str:
    """The save of a node without a lock, and of the version before this one."""
    return os.path.join(state_dir, SAVE_NAME)


def save_places(state_dir: str, node_lock: str) -> SavePlaces:
    """The saves of a node; ``node_lock`` is ``Ports.lock_path``."""
    earlier = save_path(state_dir)
    if not node_lock:
        return SavePlaces(earlier)
    directory, name = os.path.split(node_lock)
    stem, ending = os.path.splitext(SAVE_NAME)
    node = os.path.join(directory, f"{stem}{name.removeprefix('lock')}{ending}")
    lasting = os.path.join(LASTING_DIRECTORY, LASTING_NAME) if node_lock == REAL_LOCK else ""
    return SavePlaces(node, lasting, earlier if earlier != node else "")


def outlives_the_kernel(name: str) -> bool:
    """Whether the knob of that name is behind a controller, which keeps what it was given when this machine boots."""
    return "#" in name


def open_save(places: SavePlaces, boot_id: str, recipe_of: Callable[[str], Recipe | None]) -> Save | SplitSave:
    """The save for a run that writes."""
    node = Save(places.node, boot_id, recipe_of)
    return SplitSave(node, Save(places.lasting, LASTING_BOOT, recipe_of)) if places.lasting else node


class SplitSave:
    """``Save`` in two files: knobs whose device outlives the kernel have the second one."""

    def __init__(self, node: Save, lasting: Save) -> None:
        self._node, self._lasting = node, lasting

    def capture(self, values: Mapping[str, str]) -> None:
        """As ``Save.capture``."""
        for save, part in self._parts(values):
            save.capture(part)

    def wrote(self, values: Mapping[str, int]) -> None:
        """As ``Save.wrote``."""
        for save, part in self._parts(values):
            save.wrote(part)

    def limit_restores(self, values: Mapping[str, int]) -> None:
        """As ``Save.limit_restores``: the limits of a grant are in both, where there are two."""
        self._node.limit_restores(values)
        if any(map(outlives_the_kernel, values)) or os.path.exists(self._lasting.path):
            self._lasting.limit_restores(values)

    def restored(self, knobs: Sequence[str]) -> None:
        """As ``Save.restored``."""
        for save, part in self._parts(dict.fromkeys(knobs)):
            save.restored(list(part))

    @property
    def is_large(self) -> bool:
        """As ``Save.is_large``, of either file."""
        return any(save.is_large for save in self._all())

    def compact(self, knobs: Mapping[str, Captured], restore_limits: Mapping[str, int]) -> None:
        """As ``Save.compact``."""
        for save, part in self._parts(knobs):
            save.compact(part, restore_limits)

    def replace(self, knobs: Mapping[str, Captured], restore_limits: Mapping[str, int]) -> None:
        """As ``Save.replace``."""
        lasting = {name: knob for name, knob in knobs.items() if outlives_the_kernel(name)}
        self._node.replace({name: knob for name, knob in knobs.items() if name not in lasting}, restore_limits)
        self._lasting.replace(lasting, restore_limits)

    def rewrite(self, knobs: Mapping[str, Captured], restore_limits: Mapping[str, int]) -> None:
        """As ``Save.rewrite``."""
        for save, part in self._parts(knobs):
            save.rewrite(part, restore_limits)

    def remove(self) -> None:
        """As ``Save.remove``."""
        for save in self._all():
            if os.path.exists(save.path):
                save.remove()
            save.close()

    def close(self) -> None:
        """As ``Save.close``."""
        for save in self._all():
            save.close()

    def _all(self) -> Iterable[Save]:
        return (self._node, self._lasting)

    def _parts(self, values: Mapping[str, T]) -> list[tuple[Save, dict[str, T]]]:
        lasting = {name: value for name, value in values.items() if outlives_the_kernel(name)}
        node = {name: value for name, value in values.items() if name not in lasting}
        return [(save, part) for save, part in ((self._node, node), (self._lasting, lasting)) if part]
