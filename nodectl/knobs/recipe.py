"""How a knob is put back without this program's classes: what the save keeps with each captured value.

The restorer in C (``nodectl/csrc/restorer``) knows these three kinds and no knob by name. So a new knob that is an
attribute file needs no C: it says here where the file is and what the hardware makes of a value.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec


class FileRecipe(msgspec.Struct, frozen=True, tag_field="kind", tag="file", omit_defaults=True):
    """An attribute file with a whole number, or with one of ``words``, which are counted from 1.

    ``rounding`` and ``step``: what is read back after a write is ``exact``, ``within`` a step of it, or rounded
    ``down`` to a step. ``raw``: a number in the file of a knob with words counts as so much more. ``any_word``: the
    place of a word that the driver replaces by another. While the file ``hidden_by[0]`` has the text ``hidden_by[1]``,
    what is read is not what was set. A value below ours is no foreign writer's where the number in the file
    ``limited_by`` or a cooling device (``is_cooled``) explains it.
    """

    path: str
    rounding: Literal["exact", "within", "down"] = "exact"
    step: int = 1
    words: tuple[str, ...] = ()
    raw: int = 0
    any_word: int = 0
    hidden_by: tuple[str, str] | None = None
    limited_by: str = ""
    is_cooled: bool = False


class NvmlRecipe(msgspec.Struct, frozen=True, tag_field="kind", tag="nvml", omit_defaults=True):
    """A setting of a GPU: its clock lock, which has no getter, its power limit in milliwatts, or how it is divided
    (MIG). ``words``: texts of the layouts that a run may set, counted from 1.

    The card is found by its ``uuid``. ``gpu`` is its number at the time of the capture, for people and for saves of
    0.2.0, which have no UUID: numbers change where a card is lost, added or reset.
    """

    gpu: int
    call: Literal["clock_lock", "power_limit", "mig_layout"]
    uuid: str = ""
    words: tuple[str, ...] = ()


class ScmiRecipe(msgspec.Struct, frozen=True, tag_field="kind", tag="scmi", omit_defaults=True):
    """A setting of a domain behind an SCMI controller, as it was found at the capture.

    ``number``: of the domain; -1 while it is not known. Of a cap (``setting`` "cap_mw"): the range and step in mW
    (``lowest``, ``highest``, ``step``), and as the controller counts: units per mW, lowest cap and step (``units``).
    ``keeps_agents_apart``: each agent has a cap of its own. Of a clock: ``levels`` as (kHz, number), the lowest first.
    """

    url: str
    domain: str
    setting: str
    number: int = -1
    lowest: int = 0
    highest: int = 0
    step: int = 1
    units: tuple[int, int, int] = (1, 0, 0)
    keeps_agents_apart: bool = False
    levels: tuple[tuple[int, int], ...] = ()


Recipe: TypeAlias = FileRecipe | NvmlRecipe | ScmiRecipe
