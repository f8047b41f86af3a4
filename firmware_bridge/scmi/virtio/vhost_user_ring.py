"""The settings of a virtqueue, which a front end sends one by one, until it can be started."""

from __future__ import annotations

import contextlib
import os

from firmware_bridge.scmi.virtio.guest_memory import GuestMemory
from firmware_bridge.scmi.virtio.vhost_user_messages import NUMBER, Request
from firmware_bridge.scmi.virtio.virtqueue import Rings, Virtqueue


class Ring:
    """A virtqueue and the settings needed to start it, in any order."""

    def __init__(self) -> None:
        self.size = 0
        self.base = 0
        self.rings: Rings | None = None
        self.is_enabled = False
        self.is_broken = False
        self.queue: Virtqueue | None = None
        self._descriptors: dict[int, int] = {}

    def descriptor(self, request: int) -> int | None:
        """The eventfd or pipe of SET_VRING_KICK, CALL or ERR."""
        return self._descriptors.get(request)

    def set_descriptor(self, request: int, descriptor: int | None) -> None:
        """Replace the descriptor; this object owns the new one."""
        old = self._descriptors.pop(request, None)
        if old is not None:
            os.close(old)
        if descriptor is not None:
            self._descriptors[request] = descriptor

    def signal(self, request: int) -> None:
        """Signal it, if there is one. A full or broken pipe is ignored."""
        descriptor = self.descriptor(request)
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.write(descriptor, NUMBER.pack(1))

    def start(self, memory: GuestMemory | None) -> Virtqueue | None:
        """The queue, if it is running or can be started."""
        is_ready = self.is_enabled and not self.is_broken and self.descriptor(Request.SET_VRING_KICK) is not None
        if not is_ready or self.rings is None or memory is None:
            return None
        if self.queue is None:
            self.queue = Virtqueue(memory, self.size, self.rings, self.base)
        return self.queue

    def stop(self) -> None:
        """Release the guest's memory; the next start continues from here."""
        if self.queue:
            self.base = self.queue.next_index
            self.queue.release()
            self.queue = None

    def close(self) -> None:
        """Stop and close."""
        self.stop()
        for request in list(self._descriptors):
            self.set_descriptor(request, None)
