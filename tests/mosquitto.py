"""Debian's mosquitto, a broker of MQTT, which scripts/foreign.sh unpacks; an installed one does as well.

``Broker`` is one on loopback with its own folder: with TLS, users and rights, or without any of it. It is killed,
stopped and started again as a test needs it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from foundation.mqtt.mqtt_settings import MqttSettings
from lab.cluster_demo.emulated_partition import free_port
from tests.waiting import PATIENCE_S, within

ROOT = Path(__file__).parents[1]
UNPACKED = ROOT / "build" / "foreign" / "root" / "usr"


def program(name: str = "mosquitto") -> Path:
    """Its path; the test is skipped where there is none."""
    there = [UNPACKED / folder / name for folder in ("sbin", "bin") if (UNPACKED / folder / name).exists()]
    found = there[0] if there else shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        pytest.skip(f"{name} is missing: install mosquitto, or unpack it with scripts/foreign.sh")
    return Path(found)


def environment() -> dict[str, str]:
    """With the libraries that were unpacked next to it."""
    libraries = ":".join(map(str, [*UNPACKED.glob("lib/*-linux-gnu"), UNPACKED / "lib"]))
    return {**os.environ, "LD_LIBRARY_PATH": libraries}


@dataclass
class Broker:
    """``lines``: of its settings."""

    folder: Path
    lines: tuple[str, ...] = ("allow_anonymous true",)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """It listens when this returns."""
        path = self.folder / "mosquitto.conf"
        user = ("user root",) if os.geteuid() == 0 else ()
        path.write_text("\n".join((f"listener {self.port} 127.0.0.1", *self.lines, *user)) + "\n")
        path.chmod(0o600)
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [program(), "-c", path], env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        assert within(PATIENCE_S, self._listens), self.log()

    def _listens(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """At once, without a word to its clients."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def log(self) -> str:
        """What it has said."""
        return (self.folder / "log").read_text(errors="replace")

    def settings(self, **more: Any) -> MqttSettings:
        """For a client of ours."""
        return MqttSettings(f"127.0.0.1:{self.port}", "site", "test", **more)


@contextmanager
def broker(folder: Path, *lines: str) -> Iterator[Broker]:
    """One that runs, with these lines in its settings."""
    program()
    folder.mkdir(exist_ok=True)
    made = Broker(folder, lines or Broker.lines)
    made.start()
    try:
        yield made
    finally:
        made.kill()


class Listener:
    """A client of the test, which is none of ours: it has all that comes to a filter."""

    def __init__(self, broker: Broker, topic: str = "#", **login: str) -> None:
        self.messages: list[MQTTMessage] = []
        self._client = client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        client.on_message = lambda *given: self.messages.append(given[2])
        if login:
            client.username_pw_set(login["user"], login["password"])
        subscribed: list[Any] = []
        client.on_subscribe = lambda *given: subscribed.append(given)
        client.connect("127.0.0.1", broker.port)
        client.loop_start()
        assert within(PATIENCE_S, client.is_connected), broker.log()
        client.subscribe(topic, 1)
        assert within(PATIENCE_S, lambda: bool(subscribed)), broker.log()

    def publish(self, topic: str, payload: str | bytes, is_kept: bool = False) -> None:
        """Until the broker has it."""
        self._client.publish(topic, payload, 1, is_kept).wait_for_publish(PATIENCE_S)

    def topics(self) -> dict[str, str]:
        """The newest payload of each topic."""
        return {message.topic: message.payload.decode(errors="replace") for message in list(self.messages)}

    def close(self) -> None:
        """Leave the broker."""
        self._client.disconnect()
        self._client.loop_stop()


@contextmanager
def listening(broker: Broker, topic: str = "#", **login: str) -> Iterator[Listener]:
    """One that listens."""
    made = Listener(broker, topic, **login)
    try:
        yield made
    finally:
        made.close()


def certificates(folder: Path) -> None:
    """``ca.pem``, and ``server`` and ``client`` with ``.pem`` and ``.key``, signed by it; for 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing: install openssl")
    folder.mkdir(exist_ok=True)

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=PATIENCE_S)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test CA")
    (folder / "server.cnf").write_text("subjectAltName=IP:127.0.0.1\n")
    (folder / "client.cnf").write_text("extendedKeyUsage=clientAuth\n")
    for name in ("server", "client"):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-out", f"{name}.pem", "-days", "2", "-extfile", f"{name}.cnf")  # fmt: skip
