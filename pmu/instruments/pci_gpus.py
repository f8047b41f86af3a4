"""NVIDIA's GPUs as the PCI bus shows them, with or without a driver.

NVML lists only what its driver has taken and started. A card whose driver is loaded late, failed to start, or is
another one (nouveau, vfio-pci) draws power that nobody reads. The kernel lists every card as soon as the bus is
scanned: vendor 10de, class 0300 (VGA) or 0302 (3D controller).

A virtual function (``physfn``) is a part of a card that has a function of its own here, so it is no card.
Sources: Documentation/PCI/sysfs-pci.rst; PCI Code and ID Assignment Specification (class codes).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from pmu.findings import Finding, read_or_none
from pmu.ports import Files

DEVICES: Final = "/sys/bus/pci/devices"

NVIDIA: Final = "0x10de"
DISPLAY: Final = ("0x0300", "0x0302")

_ADDRESS: Final = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")


@dataclass(frozen=True, slots=True)
class BusGpus:
    """``cards``: addresses of NVIDIA's GPUs, ascending; ``others``: every other function of the bus, whose kind need
    not be read again while it stays."""

    cards: tuple[str, ...] = ()
    others: frozenset[str] = frozenset()


def look(files: Files, before: BusGpus = BusGpus()) -> BusGpus:
    """The cards now; of functions that were there ``before``, nothing is read."""
    try:
        names = files.listdir(DEVICES)
    except OSError:
        return BusGpus()
    known = set(before.cards)
    cards = [name for name in names if name in known or (name not in before.others and _is_card(files, name))]
    return BusGpus(tuple(sorted(cards)), frozenset(names).difference(cards))


def driver_of(files: Files, address: str) -> str:
    """The kernel's driver of a card; "" for none."""
    path = f"{DEVICES}/{address}/driver"
    return posixpath.basename(files.realpath(path)) if files.exists(path) else ""


def address_of(text: object) -> str:
    """An address in the form of sysfs ("0000:07:00.0") from that of NVML ("00000000:07:00.0"); "" if it is none."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    if not isinstance(text, str) or not _ADDRESS.fullmatch(text):
        return ""
    domain, rest = text.split(":", 1)
    return f"{int(domain, 16):04x}:{rest.lower()}"


def unseen(cards: Sequence[str], seen: Collection[str], absent: Sequence[str] = ()) -> tuple[str, ...]:
    """The cards that NVML does not show. ``seen``: addresses of those that it does, "" where it gives none, which then
    may be any. ``absent``: patterns of addresses that are not this system's to count."""
    left = [card for card in cards if card not in seen and not any(fnmatchcase(card, one) for one in absent)]
    without_address = sum(not address for address in seen)
    return tuple(left[without_address:])


def findings(files: Files, cards: Sequence[str]) -> list[Finding]:
    """A line for each card that NVML does not show."""
    return [Finding(f"pci-{card}", "gpu", present=True, why=why_unseen(files, card)) for card in cards]


def why_unseen(files: Files, card: str) -> str:
    """What is known of a card that NVML does not show, and what to do."""
    driver = driver_of(files, card)
    if driver == "vfio-pci":
        return "passed through to a guest (vfio-pci), so NVML does not show it: [gpu] absent names such cards"
    if driver in ("", "nvidia"):
        state = "the driver nvidia has it and NVML does not show it" if driver else "no driver has it"
        return f"{state}: its power is not read, see `dmesg` ([gpu] absent if it is not this system's)"
    return f"the driver {driver} has it, with which NVML cannot read its power: [gpu] absent leaves it out"


def _is_card(files: Files, name: str) -> bool:
    folder = f"{DEVICES}/{name}"
    if read_or_none(files, f"{folder}/vendor") != NVIDIA:
        return False
    kind = read_or_none(files, f"{folder}/class") or ""
    return kind.startswith(DISPLAY) and not files.exists(f"{folder}/physfn")
