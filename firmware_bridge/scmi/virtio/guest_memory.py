"""The memory that a virtual machine shares with a device in another process (vhost-user memory table).

A table has a few regions. Each has two addresses: the guest's physical one, used in descriptors, and the virtual one of
the process that runs the guest, used in messages about rings. No address is trusted: a range that is not completely
inside one region is an error.
"""

from __future__ import annotations

import itertools
import mmap
import os
import stat
from collections.abc import Sequence
from typing import Final

import msgspec

from firmware_bridge.errors import LinkError

MAX_REGIONS: Final = 8
"""The regions that a vhost-user back end without configurable slots must accept at least
(VHOST_MEMORY_BASELINE_NREGIONS)."""

_SPACE: Final = 1 << 64


class GuestError(LinkError):
    """The other side broke the rules of vhost-user or virtio; its request is not executed."""


class Region(msgspec.Struct, frozen=True):
    """One line of the table."""

    guest_address: int
    size: int
    user_address: int
    file_offset: int
    """Offset of the region in the file that came with it."""


class GuestMemory:
    """The mapped regions. The constructor uses the descriptors; the caller still owns and closes them."""

    def __init__(self, regions: Sequence[Region], descriptors: Sequence[int]) -> None:
        _check(regions, descriptors)
        self._regions = list(regions)
        self._maps: list[mmap.mmap] = []
        self._views: list[memoryview] = []
        try:
            for region, descriptor in zip(regions, descriptors, strict=True):
                self._map(region, descriptor)
        except (OSError, ValueError, OverflowError) as error:
            self.close()
            raise GuestError(f"a region of {region.size:#x} bytes cannot be mapped: {error}") from None

    def _map(self, region: Region, descriptor: int) -> None:
        skipped = region.file_offset % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(descriptor, skipped + region.size, offset=region.file_offset - skipped)
        self._maps.append(mapped)
        self._views.append(memoryview(mapped)[skipped:])

    def at_guest(self, address: int, size: int) -> memoryview:
        """The bytes at a guest-physical address; release the view before ``close``."""
        for region, view in zip(self._regions, self._views, strict=True):
            offset = address - region.guest_address
            if offset >= 0 and offset + size <= region.size:
                return view[offset : offset + size]
        raise GuestError(f"{size} bytes at guest address {address:#x} are not in the memory table")

    def at_user(self, address: int, size: int) -> memoryview:
        """The same for an address of the process that runs the guest."""
        for region, view in zip(self._regions, self._views, strict=True):
            offset = address - region.user_address
            if offset >= 0 and offset + size <= region.size:
                return view[offset : offset + size]
        raise GuestError(f"{size} bytes at user address {address:#x} are not in the memory table")

    def close(self) -> None:
        """Unmap; all views must have been released."""
        for view in self._views:
            view.release()
        for mapped in self._maps:
            mapped.close()
        self._views.clear()
        self._maps.clear()
        self._regions.clear()


def _check(regions: Sequence[Region], descriptors: Sequence[int]) -> None:
    if not 1 <= len(regions) <= MAX_REGIONS or len(regions) != len(descriptors):
        raise GuestError(f"a memory table of {len(regions)} regions with {len(descriptors)} descriptors")
    for region, descriptor in zip(regions, descriptors, strict=True):
        ends = (region.guest_address + region.size, region.user_address + region.size)
        if region.size == 0 or max(ends) > _SPACE:
            raise GuestError(
                f"a region of {region.size:#x} bytes at {region.guest_address:#x} wraps around or is empty"
            )
        file = os.fstat(descriptor)
        if not stat.S_ISREG(file.st_mode) or region.file_offset + region.size > file.st_size:
            raise GuestError(f"a region of {region.size:#x} bytes is not inside the file passed with it")
    for name in ("guest_address", "user_address"):
        spans = sorted((getattr(region, name), region.size) for region in regions)
        for (start, size), (following, _) in itertools.pairwise(spans):
            if start + size > following:
                raise GuestError(f"two regions overlap at {name} {following:#x}")
