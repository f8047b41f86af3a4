"""A platform behind the shared-memory server, in a thread of its own, with hooks to misbehave."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from firmware_bridge.scmi.transports.smt import Geometry
from tests.scmi.mailbox_server import MailboxServer
from tests.scmi.small_platform import SmallPlatform


class MailboxDevice:
    """Serves until closed; the next entry of ``faults`` replaces the next answer's way out."""

    def __init__(
        self, path: str, agents: int = 2, geometry: Geometry | None = None, platform: SmallPlatform | None = None
    ) -> None:
        self.platform = platform or SmallPlatform()
        self.server = MailboxServer(path, agents, geometry)
        self.faults: deque[Callable[[MailboxServer, int, bytes], None]] = deque()
        self.executed = 0
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        before_s = time.monotonic()
        while not self._is_stopping:
            for agent, message in self.server.wait(0.005):
                self.executed += 1
                answer = self.platform.answer(agent, message)
                if self.faults:
                    self.faults.popleft()(self.server, agent, answer)
                else:
                    self.server.answer(agent, answer)
            now_s = time.monotonic()
            self.platform.advance(now_s - before_s)
            before_s = now_s
            for agent in self.server.agents:
                for event in self.platform.notifications(agent):
                    self.server.notify(agent, event)

    def close(self) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            self._thread.join()
            self.server.close()
