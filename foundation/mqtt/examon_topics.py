"""ExaMon's naming: a figure is a topic of tags, and its value and time are the payload.

A topic is pairs of key and value, which say where the figure comes from, then ``plugin/NAME/chnl/data``, more pairs,
and the name of the metric: ``org/o/cluster/c/node/n01/plugin/nodectl_pub/chnl/data/gpu/0/power``. What MQTT or the
naming reserves is written as in a URL. The payload is ``value;timestamp``, in Unix seconds; a value is a number or a
text.
Source: ExaMon 0.5, "Data Model" (github.com/ExamonHPC/examon). Not verified against a running ExaMon.
"""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PLACES: Final = ("rack", "node")
"""Labels of a figure that say where it comes from, and so stand before the plugin."""

NAMES_USERS: Final = "user"
LONGEST_TOPIC: Final = 65_535
"""Bytes: MQTT 5.0, 1.5.4."""

_RESERVED: Final = re.compile(r"[%/#+\s\x00-\x1f\x7f]")


class Message(NamedTuple):
    """What is published. ``is_kept``: the broker gives it to whoever subscribes later (retained)."""

    topic: str
    payload: str
    is_kept: bool = False


class Value(NamedTuple):
    """What a payload says: a number, or the text that it is."""

    text: str
    unix_s: float


class Source(NamedTuple):
    """Of all messages of a process: ``org``, ``cluster``, the plugin's name, and the node, if they are of one."""

    org: str
    cluster: str
    plugin: str
    node: str = ""

    def topic(self, metric: str, labels: Mapping[str, str] = MappingProxyType({})) -> str:
        """Of a metric with these labels; one without a value is left out, since a tag cannot be empty."""
        labels = {"node": self.node, **labels}
        places = {key: labels[key] for key in PLACES if labels.get(key)}
        more = {key: value for key, value in labels.items() if value and key not in places}
        parts = [("org", self.org), ("cluster", self.cluster), *places.items(), ("plugin", self.plugin),
                 ("chnl", "data"), *more.items()]  # fmt: skip
        return "/".join([*(f"{_tag(key)}/{_tag(value)}" for key, value in parts), _tag(metric)])

    def filter(self, metric: str) -> str:
        """Of all messages of a metric without labels; ``plugin`` may be +, which is any."""
        return f"org/{_tag(self.org)}/cluster/{_tag(self.cluster)}/plugin/{self.plugin}/chnl/data/{_tag(metric)}"


def payload(value: float | str, unix_s: float) -> str:
    """Of a value: a number as the shortest text that is it, or a text."""
    text = value if isinstance(value, str) else str(int(value)) if _is_whole(value) else repr(float(value))
    return f"{text};{unix_s:.3f}"


def read_payload(content: bytes) -> Value | None:
    """What a payload says; None: it is none."""
    text, mark, stamp = content.decode("utf-8", "replace").rpartition(";")
    try:
        unix_s = float(stamp)
    except ValueError:
        return None
    return Value(text, unix_s) if mark and math.isfinite(unix_s) else None


def messages(families: Iterable[Metric], source: Source, with_users: bool) -> Iterator[Message]:
    """Figures as Prometheus has them, at the time of day. Values that are no numbers are left out, and where not
    ``with_users`` also what names a user."""
    unix_s = time.time()
    for family in families:
        for sample in family.samples:
            if math.isfinite(sample.value) and (with_users or NAMES_USERS not in sample.labels):
                topic = source.topic(sample.name, sample.labels)
                if len(topic) <= LONGEST_TOPIC:
                    yield Message(topic, payload(sample.value, unix_s))


def _is_whole(value: float) -> bool:
    return abs(value) < 1e15 and value == int(value)


@functools.lru_cache(1 << 16)
def _tag(text: str) -> str:
    """``%2F`` for /, and so on."""
    return _RESERVED.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), text)
