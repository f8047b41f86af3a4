"""The table ``[mqtt]`` of both settings files: which broker, with which rights, and what is sent there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from foundation.shell.errors import UsageError
from foundation.shell.settings import ConfigError, checked, host_and_port, line_of, read_toml

TABLE: Final = "mqtt"
LOOPBACK: Final = ("localhost", "127.", "::1")


class MqttSettings(msgspec.Struct, frozen=True):
    """An MQTT broker, such as that of ExaMon (docs/mqtt.md)."""

    broker: Annotated[
        str, Meta(description="Its address, such as `broker.site:8883`; empty: nothing is published.")
    ] = ""
    org: Annotated[str, Meta(description="The first tag of each topic: the site.")] = ""
    cluster: Annotated[str, Meta(description="The second tag of each topic.")] = ""
    ca: Annotated[
        str,
        Meta(
            description="A file with the certificates that may sign the broker's, such as"
            " `/etc/ssl/certs/ca-certificates.crt`; empty: without TLS."
        ),
    ] = ""
    certificate: Annotated[str, Meta(description="This client's certificate; needs `key` and `ca`.")] = ""
    key: Annotated[str, Meta(description="The key of the certificate; of a credential of systemd, its name.")] = ""
    user: Annotated[str, Meta(description="A user of the broker; needs `password_file`.")] = ""
    password_file: Annotated[
        str,
        Meta(description="A file with the user's password alone. Of a credential of systemd, its name."),
    ] = ""
    period_s: Annotated[float, Meta(description="Between two times that all figures are sent.", ge=1, le=3600)] = 10.0
    queue: Annotated[
        int,
        Meta(
            description="Points kept while the broker does not take them; then the oldest are dropped and counted.",
            ge=100,
            le=1_000_000,
        ),
    ] = 20_000
    users: Annotated[
        bool, Meta(description="Also send what names users: joules of users, running jobs, and jobs that have ended.")
    ] = False
    protocol: Annotated[
        Literal["5", "3.1.1"],
        Meta(description="Of MQTT. With 3.1.1 a broker does not say that this client lacks a right."),
    ] = "5"

    @property
    def problem(self) -> tuple[str, str] | None:
        """A key that is wrong and why, in so far as no file has to be read; None: none."""
        return next(self._problems(), None) if self.broker else None

    def _problems(self) -> Iterator[tuple[str, str]]:
        try:
            host, _ = host_and_port(self.broker)
        except UsageError as error:
            yield "broker", str(error).replace("127.0.0.1:9742", "broker.site:8883")
            return
        for name in ("org", "cluster"):
            if not getattr(self, name):
                yield name, "is missing: each topic begins with org/ORG/cluster/CLUSTER"
        for name, other in (("certificate", "key"), ("key", "certificate"), ("user", "password_file"),
                            ("password_file", "user")):  # fmt: skip
            if getattr(self, name) and not getattr(self, other):
                yield name, f"needs {other}, too"
        if self.certificate and not self.ca:
            yield "certificate", "needs ca: a certificate is shown over TLS alone"
        if self.user and not self.ca and not host.startswith(LOOPBACK):
            yield "user", f"needs ca: without TLS everybody on the way to {host} reads the password"

    def password(self) -> str:
        """The password; ``ConfigError`` in one line."""
        path = credential(self.password_file)
        try:
            with open(path, encoding="utf-8") as file:
                if os.fstat(file.fileno()).st_mode & 0o007:
                    raise ConfigError(f"{path}: others may read the password: chmod o= it")
                return file.read(4096).rstrip("\r\n")
        except UnicodeDecodeError:
            raise ConfigError(f"{path}: the password is no text in UTF-8") from None
        except OSError as error:
            raise ConfigError(f"{path}: cannot read the password: {error.strerror}") from None


def credential(path: str) -> Path:
    """The path of a file that may be a credential of the service: systemd.exec(5), LoadCredential=."""
    return Path(os.environ.get("CREDENTIALS_DIRECTORY", ""), path)


def read_mqtt_settings(path: Path) -> MqttSettings:
    """The table ``[mqtt]`` of a settings file, whatever else is in it; ``ConfigError`` in one line, also if it names no
    broker."""
    text, given = read_toml(path)
    table = given.get(TABLE, {})

    def where(key: tuple[str, ...]) -> str:
        return f"{path}:{line_of(text, (TABLE, *key))}"

    if not isinstance(table, dict):
        raise ConfigError(f"{where(())}: {TABLE} must be a table")
    found = checked(table, MqttSettings, where)
    if not found.broker:
        raise ConfigError(f'{path}: set [mqtt] broker = "broker.site:8883", org and cluster: else nothing is published')
    if problem := found.problem:
        raise ConfigError(f"{where((problem[0],))}: {TABLE}.{problem[0]}: {problem[1]}")
    return found
