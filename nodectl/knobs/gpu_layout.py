"""How a GPU is divided (MIG): its mode, its GPU instances and their compute instances, as one setting.

The layout that is found is a text, ``off`` or ``on`` with each GPU instance and its compute instances:

    on 9@0/0,1 9@4/2       profile 9 (3g) from memory slice 0 with compute instances of profiles 0 (1c) and 1 (2c),
                           and a second one from slice 4 with one compute instance that is all of it (2: 3c)

A restore makes exactly this again: the driver derives the UUIDs of MIG devices from the places, so they are the same
too. What a policy may choose are layouts that fill a card with whole instances, by the names of their slices
("3g+3g"), counted from 1; any other layout that somebody has made is ``OTHER`` more than a sum of its text.

A layout is changed by destroying what is there and making the new one. A card on which a process computes is never
touched: the change is refused and tried again later. Where the new layout cannot be made, the old one is made again.
Clocks, watts and temperature stay those of the whole card. All this needs root.
Source: NVML API reference, "Multi Instance GPU Management"; NVIDIA Multi-Instance GPU User Guide.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from nodectl.knobs.api import KnobError, Reason
from nodectl.knobs.gpu_limits import CARD, NvmlKnob, open_card_knob
from nodectl.knobs.kind import Domain, KnobKind
from nodectl.knobs.recipe import NvmlRecipe
from pmu.driver_values import ODD_ANSWERS, whole
from pmu.findings import Finding
from pmu.layout import KnobRange, Layout

OFF: Final = "off"
OTHER: Final = 1_000_000
"""Ours: what is added to the sum of a layout that no policy can choose."""

LATENCY_S: Final = 5.0
"""Ours: switching the mode resets an A100, which takes seconds; making instances takes some tenths."""

_PROFILE_OF: Final = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}
"""NVML's number of the profile with so many slices, of GPU instances and of compute instances (nvml.h)."""

_MOST_INSTANCES: Final = 8

_PROFILES, _SLICES = (0, 999), (0, 99)
"""Ours: bounds of identifiers of profiles and of numbers of slices, as a layout's text can have them."""

_INSTANCE: Final = re.compile(r"(\d{1,3})@(\d{1,2})(?:/(\d{1,3}(?:,\d{1,3})*))?")

CHOICES: Final[tuple[tuple[tuple[int, int], ...], ...]] = (
    ((7, 0),),
    ((4, 0), (3, 4)),
    ((4, 0), (2, 4), (1, 6)),
    ((4, 0), (1, 4), (1, 5), (1, 6)),
    ((3, 0), (3, 4)),
    ((3, 0), (2, 4), (1, 6)),
    ((3, 0), (1, 4), (1, 5), (1, 6)),
    ((2, 0), (2, 2), (3, 4)),
    ((2, 0), (2, 2), (2, 4), (1, 6)),
    ((2, 0), (2, 2), (1, 4), (1, 5), (1, 6)),
    ((2, 0), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6)),
    tuple((1, start) for start in range(7)),
)
"""Layouts that a policy may choose: slices of each instance and its first memory slice. A card of eight memory slices
has them all; another card has those whose places its driver lists."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One GPU instance: profile, first memory slice, and the profiles of its compute instances by their place."""

    profile: int
    start: int
    compute: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.profile}@{self.start}" + (f"/{','.join(map(str, self.compute))}" if self.compute else "")


class CardLayout(NvmlKnob):
    """How one card is divided. ``words``: the layouts that can be chosen; ``texts``: what ``read`` returns of them."""

    unit = "layout"
    latency_s = LATENCY_S

    def __init__(self, nvml: Any, gpu: str) -> None:
        super().__init__(nvml, gpu, "mig_layout")
        self._modes()
        self.words, self.texts = self._choices()

    def read(self) -> str:
        """The layout in force. A mode that waits for an idle card is not in force."""
        mode, _ = self._modes()
        return " ".join(["on", *map(str, self._parts())]) if mode else OFF

    def set(self, value: int) -> None:
        """Divide the card by the layout at this place of ``words``."""
        if not 1 <= value <= len(self.words):
            raise KnobError(f"{self._gpu}: there are {len(self.words)} layouts to choose from, none is number {value}")
        self._become(self.texts[value - 1])

    def read_back(self) -> int | None:
        """The place of the layout in force, or the number of one that cannot be chosen."""
        return self.number(self.read())

    def restore(self, captured: str) -> None:
        """Make the captured layout again."""
        self._become(captured)

    def number(self, text: str) -> int | None:
        """The place of a layout among those that can be chosen; others by their sum."""
        return 1 + self.texts.index(text) if text in self.texts else OTHER + zlib.crc32(text.encode()) % 1_000_000_000

    def shown(self, value: int) -> str:
        """The slices, as "3g+3g"."""
        return self.words[value - 1] if 1 <= value <= len(self.words) else "another layout"

    def matches(self, requested: int, present: int) -> bool:
        """A layout is made exactly or not at all."""
        return requested == present

    def recipe(self) -> NvmlRecipe:
        """The texts of the layouts that can be chosen, by which the restorer knows what this agent has set."""
        return NvmlRecipe(self._index, "mig_layout", self.uuid, self.texts)

    def overruled(self, value: int) -> tuple[Reason, str]:
        """Never: what is read back is in force."""
        return "", ""

    def explain(self, requested: int, present: int | None) -> tuple[Reason, str]:
        """Nothing but a program divides a card."""
        return "", ""

    def range(self, layout: Layout) -> KnobRange:
        """Every layout that can be chosen."""
        places = tuple(range(1, len(self.words) + 1))
        return KnobRange(self.name, "mig", 1, len(places), places, (), self.words)

    # ---- what the card can be divided into ---------------------------------------------------------------------------

    def _choices(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names and texts of the layouts of this card; the first is the whole card."""
        names, texts = [OFF], [OFF]
        with contextlib.suppress(KnobError):
            known = {slices: self._profile(slices) for choice in CHOICES for slices, _ in choice}
            for choice in CHOICES:
                if all(start in known[slices][1] for slices, start in choice):
                    names.append("+".join(f"{slices}g" for slices, _ in choice))
                    parts = [_Part(known[slices][0], start, (_PROFILE_OF[slices],)) for slices, start in choice]
                    texts.append(" ".join(["on", *map(str, parts)]))
        return tuple(names), tuple(texts)

    def _profile(self, slices: int) -> tuple[int, tuple[int, ...]]:
        """The card's identifier of the profile with so many slices, and where instances of it can begin."""
        try:
            info = self._nvml.nvmlDeviceGetGpuInstanceProfileInfo(self._device, _PROFILE_OF[slices])
        except (self._nvml.NVMLError, *ODD_ANSWERS):
            return -1, ()
        profile = whole(getattr(info, "id", None), _PROFILES)
        return (-1, ()) if profile is None else (profile, tuple(start for start, _ in self._places(profile)))

    def _places(self, profile: int) -> list[tuple[int, int]]:
        rows = (self._nvml.c_nvmlGpuInstancePlacement_t * _MOST_INSTANCES)()
        count = ctypes.c_uint(_MOST_INSTANCES)
        self._call(
            f"list the places of profile {profile}",
            self._nvml.nvmlDeviceGetGpuInstancePossiblePlacements,
            self._device,
            profile,
            rows,
            ctypes.byref(count),
        )
        return [(row.start, row.size) for row in rows[: min(count.value, _MOST_INSTANCES)]]

    # ---- what is there -----------------------------------------------------------------------------------------------

    def _modes(self) -> tuple[int, int]:
        """The mode in force and the one that waits for an idle card."""
        answer = self._call("read its MIG mode", self._nvml.nvmlDeviceGetMigMode, self._device)
        modes = [whole(one, (0, 1)) for one in answer] if isinstance(answer, list | tuple) else []
        if len(modes) != 2 or modes[0] is None or modes[1] is None:
            raise KnobError(f"{self._gpu}: the driver answers a MIG mode that cannot be")
        return modes[0], modes[1]

    def _place(self, info: Any) -> tuple[int, int]:
        """First slice and profile of an instance."""
        start = whole(getattr(getattr(info, "placement", None), "start", None), _SLICES)
        profile = whole(getattr(info, "profileId", None), _PROFILES)
        if start is None or profile is None:
            raise KnobError(f"{self._gpu}: the driver answers a place of an instance that cannot be")
        return start, profile

    def _instances(self) -> list[Any]:
        """Handles of all GPU instances."""
        found: list[Any] = []
        for number in range(self._nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                profile = self._nvml.nvmlDeviceGetGpuInstanceProfileInfo(self._device, number).id
            except (self._nvml.NVMLError, *ODD_ANSWERS):
                continue  # the card has no such profile
            rows, count = (self._nvml.c_nvmlGpuInstance_t * _MOST_INSTANCES)(), ctypes.c_uint(_MOST_INSTANCES)
            getter = self._nvml.nvmlDeviceGetGpuInstances
            self._call("list its GPU instances", getter, self._device, profile, rows, ctypes.byref(count))
            found += rows[: min(count.value, _MOST_INSTANCES)]
        return found

    def _compute(self, instance: Any) -> list[tuple[int, int, Any]]:
        """Compute instances of a GPU instance by their place: first slice, profile, handle."""
        found: list[tuple[int, int, Any]] = []
        for number in range(self._nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            rows, count = (self._nvml.c_nvmlComputeInstance_t * _MOST_INSTANCES)(), ctypes.c_uint(_MOST_INSTANCES)
            try:
                profile = self._nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, 0).id
                self._nvml.nvmlGpuInstanceGetComputeInstances(instance, profile, rows, ctypes.byref(count))
            except (self._nvml.NVMLError, *ODD_ANSWERS):
                continue  # an instance of this size has no such profile
            for one in rows[: min(count.value, _MOST_INSTANCES)]:
                info = self._call("read a compute instance", self._nvml.nvmlComputeInstanceGetInfo, one)
                found.append((*self._place(info), one))
        return sorted(found, key=lambda one: one[0])

    def _parts(self) -> list[_Part]:
        parts = []
        for instance in self._instances():
            info = self._call("read a GPU instance", self._nvml.nvmlGpuInstanceGetInfo, instance)
            compute = tuple(profile for _, profile, _ in self._compute(instance))
            start, profile = self._place(info)
            parts.append(_Part(profile, start, compute))
        return sorted(parts, key=lambda part: part.start)

    # ---- changing it -------------------------------------------------------------------------------------------------

    def _become(self, text: str) -> None:
        """Change to the layout of that text; ``KnobError`` leaves the card as it was."""
        wanted = self._checked(text)
        before = self.read()
        if before == text:
            return
        self._refuse_if_busy()
        try:
            self._make(wanted)
        except KnobError as error:
            try:
                self._make(self._checked(before))
            except KnobError as second:
                raise KnobError(f"{error}; what was there before ({before}) cannot be made again: {second}") from error
            raise

    def _checked(self, text: str) -> list[_Part] | None:
        """The instances of a text, None for ``off``; ``KnobError`` before anything is changed if they cannot be."""
        if text == OFF:
            return None
        mode, *words = text.split(" ")
        matches = [_INSTANCE.fullmatch(word) for word in words]
        if mode != "on" or not all(matches):
            raise KnobError(f"{self.name}: the saved state {text!r} is not one this knob can have captured")
        parts, taken = [], set[int]()
        for match in matches:
            assert match
            part = _Part(int(match[1]), int(match[2]), tuple(int(one) for one in (match[3] or "").split(",") if one))
            size = dict(self._places(part.profile)).get(part.start)
            if size is None or taken & set(range(part.start, part.start + size)):
                raise KnobError(f"{self._gpu}: profile {part.profile} does not fit at slice {part.start}: {text}")
            taken |= set(range(part.start, part.start + size))
            parts.append(part)
        return parts

    def _refuse_if_busy(self) -> None:
        running = self._call("list its processes", self._nvml.nvmlDeviceGetComputeRunningProcesses, self._device)
        if not isinstance(running, list):
            raise KnobError(f"{self._gpu}: the driver answers processes that cannot be; it stays divided as it is")
        if running:
            pids = ", ".join(str(getattr(one, "pid", "?")) for one in running[:4])
            raise KnobError(f"{self._gpu}: a process computes on it (PID {pids}); it stays divided as it is")

    def _make(self, parts: Sequence[_Part] | None) -> None:
        """Destroy what is there and make these instances; None: MIG mode off."""
        self._clear()
        self._switch(parts is not None)
        for part in parts or ():
            size = dict(self._places(part.profile)).get(part.start, 0)
            place = self._nvml.c_nvmlGpuInstancePlacement_t(part.start, size)
            verb = f"make an instance of profile {part.profile} at slice {part.start}"
            create = self._nvml.nvmlDeviceCreateGpuInstanceWithPlacement
            instance = self._call(verb, create, self._device, part.profile, ctypes.byref(place))
            for profile in part.compute:
                verb = f"make a compute instance of profile {profile}"
                self._call(verb, self._nvml.nvmlGpuInstanceCreateComputeInstance, instance, profile)

    def _clear(self) -> None:
        mode, _ = self._modes()
        if not mode:
            return
        for instance in self._instances():
            for _, _, one in self._compute(instance):
                self._call("destroy a compute instance", self._nvml.nvmlComputeInstanceDestroy, one)
            self._call("destroy a GPU instance", self._nvml.nvmlGpuInstanceDestroy, instance)

    def _switch(self, is_on: bool) -> None:
        current, pending = self._modes()
        if (current, pending) == (is_on, is_on):
            return
        verb = f"switch MIG mode {'on' if is_on else 'off'}"
        activation = self._call(verb, self._nvml.nvmlDeviceSetMigMode, self._device, int(is_on))
        if activation:  # it waits: take the request back, so that no reset carries it out later
            self._call(verb, self._nvml.nvmlDeviceSetMigMode, self._device, current)
            raise KnobError(f"{self._gpu}: cannot {verb} now: {self._nvml.NVMLError(activation)}")


def _look(knob: CardLayout) -> Finding:
    remark = f"{len(knob.words)} layouts" + ("" if os.geteuid() == 0 else "; the driver lets only root divide it")
    return Finding(knob.name, "knob", True, True, os.geteuid() == 0, False, remark)


KIND = KnobKind(
    pattern=rf"gpu/(?P<gpu>{CARD})/mig_layout",
    name="gpu/*/mig_layout",
    find=lambda files, layout: ([f"gpu/{gpu.index}/mig_layout" for gpu in layout.gpus if gpu.has_mig], ""),
    open=lambda ports, name: open_card_knob(ports, name, CardLayout),
    look=lambda files, knob: _look(knob),
    domain=Domain(name="mig", what="layouts of GPUs (MIG)", rests_on="", range_of=CardLayout.range),
)
