"""A client for controllers that other processes run in real time."""

from __future__ import annotations

from firmware_bridge.scmi.client import Client
from firmware_bridge.scmi.transports.url import open_client
from tests.waiting import PATIENCE_S


def patient_client(url: str) -> Client:
    """It waits long for an answer: a loaded machine is no fault of the controller's."""
    client = open_client(url)
    client.transport.reply_timeout_s = PATIENCE_S
    return client
