"""A connection to a broker of MQTT that is made again by itself, without a thread.

All that may wait has a limit: looking for the broker, TLS and each turn. A message is published with quality of service
1, so the broker acknowledges it, and with MQTT 5 it says so where a right is missing; what was not acknowledged is sent
again after the next connection. Source: MQTT 5.0 (OASIS), 3.4 (PUBACK), 4.4 (delivery retry).
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage, error_string
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from foundation.mqtt.examon_topics import Message
from foundation.mqtt.mqtt_settings import MqttSettings, credential
from foundation.shell.settings import ConfigError, host_and_port

CONNECT_S: Final = 3.0
"""Ours: a connection has to be there after this time."""

KEEP_ALIVE_S: Final = 15
"""Ours: a broker that is silent for some longer is lost; TLS has to be there after this time."""

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""Ours: until a lost broker is tried again; each time twice as long."""

LEAVE_S: Final = 2.0
"""Ours: at the end the broker has so long to take what it was sent."""

IN_FLIGHT: Final = 500
"""Ours: messages that wait for their acknowledgements at once."""

REFUSES_PROTOCOL: Final = 0x84
type_received = Callable[[MQTTMessage], None]


class BrokerLink:
    """``client``: the name by which the broker knows this process; two with one name throw each other out.
    ``session_s``: so long the broker keeps what is not fetched (0: nothing). ``ConfigError`` for files of the settings
    that cannot be used."""

    def __init__(
        self, settings: MqttSettings, client: str, session_s: int = 0, on_message: type_received | None = None
    ) -> None:
        self.trouble = ""
        """Why there is no connection, or nothing to fetch; empty: nothing is wrong."""
        self.refusal = ""
        """Why the broker has refused a message, the last time."""
        self.is_connected = False
        self.in_flight = self.acknowledged = self.refused = 0
        self.granted: bool | None = None
        """Of ``subscribe``; None: the broker has not answered."""
        self._settings = settings
        self._due_s, self._wait_s, self._since_s = 0.0, FIRST_WAIT_S, 0.0
        protocol = MQTTProtocolVersion.MQTTv5 if settings.protocol == "5" else MQTTProtocolVersion.MQTTv311
        is_5 = protocol == MQTTProtocolVersion.MQTTv5
        self._client = made = Client(
            CallbackAPIVersion.VERSION2, client, None if is_5 else not session_s, protocol=protocol, manual_ack=True
        )
        made.connect_timeout = CONNECT_S
        made.max_inflight_messages_set(IN_FLIGHT)
        made.on_connect, made.on_disconnect = self._connected, self._disconnected
        made.on_publish, made.on_subscribe = self._published, self._subscribed
        made.on_message = None if on_message is None else lambda client, data, message: on_message(message)
        if settings.ca:
            made.tls_set_context(_tls(settings))
        if settings.user:
            made.username_pw_set(settings.user, settings.password())
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # of paho
        properties.SessionExpiryInterval = session_s
        properties.ReceiveMaximum = IN_FLIGHT
        host, port = host_and_port(settings.broker)
        if is_5:
            made.connect_async(host, port, KEEP_ALIVE_S, clean_start=not session_s, properties=properties)
        else:
            made.connect_async(host, port, KEEP_ALIVE_S)

    def turn(self, timeout_s: float) -> None:
        """Connect if it is time, and send and receive until something has come or this time is over."""
        now_s = time.monotonic()
        if not self._client.socket():
            if now_s < self._due_s:
                time.sleep(min(timeout_s, self._due_s - now_s))
                return
            self._due_s, self._wait_s = now_s + self._wait_s, min(2 * self._wait_s, LONGEST_WAIT_S)
            try:
                self._client.reconnect()
            except OSError as error:
                self._lost(error)
                return
        if (code := self._client.loop(timeout_s)) != MQTTErrorCode.MQTT_ERR_SUCCESS and not self.trouble:
            why = "it does not answer" if code == MQTTErrorCode.MQTT_ERR_KEEPALIVE else error_string(code).lower()
            self.trouble = f"no broker at {self._settings.broker}: {why.rstrip('.')}"

    def publish_from(self, queue: deque[Message]) -> None:
        """Hand over the first of these that may be on their way at once; the broker's answers come in later turns."""
        while queue and self.is_connected and self.in_flight < IN_FLIGHT:
            message = queue.popleft()
            self._client.publish(message.topic, message.payload.encode(), qos=1, retain=message.is_kept)
            self.in_flight += 1

    def subscribe(self, topic: str) -> None:
        """Have messages given to ``on_message``, those alone that come from now on."""
        if self._settings.protocol == "5":
            options = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
            self._client.subscribe(topic, options=options)
        else:
            self._client.subscribe(topic, 1)

    def acknowledge(self, message: MQTTMessage) -> None:
        """What is acknowledged does not come again."""
        self._client.ack(message.mid, message.qos)

    def close(self, patience_s: float) -> None:
        """Wait so long for acknowledgements, and leave the broker."""
        until_s = time.monotonic() + patience_s
        while self.is_connected and self.in_flight and time.monotonic() < until_s:
            self.turn(0.05)
        with contextlib.suppress(OSError, ValueError):
            self._client.disconnect()
            while self._client.socket() and time.monotonic() < until_s:
                self._client.loop(0.05)
        self._client.reinitialise()  # closes what it made, also where the broker no longer reads

    def _lost(self, error: OSError) -> None:
        why = "it does not answer" if isinstance(error, TimeoutError) else _plain(error)
        self.is_connected = False
        self.trouble = f"no broker at {self._settings.broker}: {why}"

    def _connected(self, client: Client, data: Any, flags: ConnectFlags, code: ReasonCode, properties: Any) -> None:
        self.is_connected = not code.is_failure
        if self.is_connected:
            self.trouble, self._since_s = "", time.monotonic()
            return
        advice = '; set [mqtt] protocol = "3.1.1"' if code.value == REFUSES_PROTOCOL else ""
        self.trouble = f"the broker at {self._settings.broker} refuses: {str(code).lower()}{advice}"

    def _disconnected(
        self, client: Client, data: Any, flags: DisconnectFlags, code: ReasonCode, properties: Any
    ) -> None:
        if self.is_connected:
            self.trouble = f"the broker at {self._settings.broker} is lost: {str(code).lower()}"
            if time.monotonic() > self._since_s + LONGEST_WAIT_S:  # else somebody throws us out again and again
                self._wait_s = FIRST_WAIT_S
        self.is_connected = False

    def _published(self, client: Client, data: Any, mid: int, code: ReasonCode, properties: Any) -> None:
        self.in_flight -= 1
        if code.is_failure:
            self.refused += 1
            self.refusal = f"refused by the broker at {self._settings.broker}: {str(code).lower()}"
        else:
            self.acknowledged += 1

    def _subscribed(self, client: Client, data: Any, mid: int, codes: list[ReasonCode], properties: Any) -> None:
        self.granted = not any(code.is_failure for code in codes)
        if not self.granted:
            self.trouble = f"the broker at {self._settings.broker} gives nothing: {str(codes[0]).lower()}"


def _tls(settings: MqttSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ca)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"{settings.ca}: no certificates for [mqtt] ca: {_plain(error)}") from None
    if settings.certificate:
        try:
            context.load_cert_chain(settings.certificate, credential(settings.key), lambda: "")
        except OSError as error:
            files = f"{settings.certificate}, {settings.key}"
            raise ConfigError(f"{files}: no certificate and its key for [mqtt]: {_plain(error)}") from None
    return context


def _plain(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).replace('_', ' ').lower()}"
    return error.strerror or str(error)
