"""A router and links on loopback with keys of their own, pumped by the test: no loop, no thread of ours."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from pathlib import Path

import zmq

from cluster_agent.fabric.allowed import Allowed, Entry
from cluster_agent.fabric.router import Router
from foundation.wire.keys import KeyPair
from foundation.wire.power_messages import Declaration, Grant, Report
from nodectl.member.cluster_link import ClusterLink
from nodectl.member.lease import NodeLease
from tests.waiting import PATIENCE_S

DECLARED = Declaration(tdp_mw=500_000, mop_mw=200_000, safe_mw=220_000, boot_mw=300_000, lease_class="os")
S = 1_000_000_000


def pair() -> KeyPair:
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def report(node: str = "n0", report_id: int = 1, **given: object) -> Report:
    lease = NodeLease(node, "boot-1", DECLARED, 400_000, report_id)
    made = lease.report(report_id, 250_000)
    return Report(**{name: getattr(made, name) for name in made.__struct_fields__} | given)


def grant(node: str = "n0", sequence: int = 1) -> Grant:
    return Grant(node, 1, "boot-1", sequence, 300_000, 1, 10 * S)


class Fabric:
    """``with Fabric(tmp_path) as fabric: link = fabric.link("n0")``."""

    def __init__(self, directory: Path) -> None:
        self.said: list[str] = []
        self.keys = pair()
        self.allowed = Allowed(directory)
        self.node_keys: dict[str, KeyPair] = {}
        self.router = Router("tcp://127.0.0.1:*", self.keys, self.allowed, self.said.append)
        self.heard: list[Report] = []
        self.now_s = 0.0
        self._links: list[ClusterLink] = []

    def allow(self, name: str, role: str = "node") -> KeyPair:
        self.node_keys[name] = made = pair()
        self.allowed.allow(Entry(role, name, made.public))
        return made

    def link(self, name: str, keys: KeyPair | None = None) -> ClusterLink:
        keys = keys or self.node_keys.get(name) or self.allow(name)
        made = ClusterLink(self.router.url, keys, self.keys.public)
        self._links.append(made)
        return made

    def dealer(self, name: str, **options: object) -> zmq.Socket[bytes]:
        """A bare socket with an allowed key, for what no link of ours would send."""
        keys = self.node_keys.get(name) or self.allow(name)
        made = zmq.Context.instance().socket(zmq.DEALER)
        made.setsockopt(zmq.LINGER, 0)
        made.curve_publickey, made.curve_secretkey = keys.public.encode(), keys.secret.encode()
        made.curve_serverkey = self.keys.public.encode()
        for option, value in options.items():
            setattr(made, option, value)
        made.connect(self.router.url)
        return made

    def pump(self) -> None:
        poller = select.poll()
        for descriptor in self.router.interests():
            poller.register(descriptor, select.POLLIN)
        poller.poll(5)
        self.heard += self.router.receive(self.now_s)

    def until(self, holds: Callable[[], object]) -> None:
        """Pump until something is true; a test that waits in vain fails."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, f"in vain; said: {self.said}"
            self.pump()

    def tell(self, link: ClusterLink, one: Report) -> Report:
        """Send a report until it has come."""
        n = len(self.heard)

        def sent() -> bool:
            link.receive()
            return len(self.heard) > n

        link.send(one)
        self.until(sent)
        return self.heard[-1]

    def __enter__(self) -> Fabric:
        return self

    def __exit__(self, *_: object) -> None:
        for link in self._links:
            link.close()
        self.router.close()
