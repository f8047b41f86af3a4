"""An agent that waits for its writer, for example while systemd starts that again, is seen to be alive."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from nodectl.writer_process import channel
from nodectl.writer_process.channel import Channel, ChannelError, pair
from nodectl.writer_process.remote_writer import RemoteWriter
from nodectl.writer_process.writer_link import Link
from nodectl.writer_process.writer_protocol import VERSION, Started, Welcome, encode
from tests.waiting import PATIENCE_S


@pytest.fixture(autouse=True)
def _short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "WAIT_STEP_S", 0.01)


def a_writer(before_start: Callable[[], object]) -> Iterator[Link]:
    """A connection to a thread that welcomes at once, and calls this before it answers ``Start``."""
    ours, theirs = pair()

    def serve() -> None:
        end = Channel(theirs)
        end.receive(PATIENCE_S)
        end.send(encode(Welcome(VERSION, os.getpid(), [], 0)))
        end.receive(PATIENCE_S)
        before_start()
        end.send(encode(Started([], ["there again"], {}, {}, {}, {})))
        end.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield Link(Channel(ours))
    thread.join()


def test_who_waits_for_the_writer_is_called_meanwhile() -> None:
    was_called = threading.Event()
    links = a_writer(lambda: was_called.wait(PATIENCE_S))
    writer = RemoteWriter(lambda: next(links))
    writer.while_waiting = was_called.set
    assert writer.start().remarks == ["there again"] and was_called.is_set()
    writer.close()
    assert next(links, None) is None


def test_a_wait_ends_all_the_same() -> None:
    ours, theirs = pair()
    calls: list[int] = []
    with pytest.raises(ChannelError, match=r"no answer within 0\.05 s"):
        Channel(ours).receive(0.05, lambda: calls.append(1))
    assert calls
    theirs.close()
    ours.close()


def test_what_is_there_already_is_received_without_a_call() -> None:
    ours, theirs = pair()
    Channel(theirs).send(b"now")
    assert Channel(ours).receive(0.0, lambda: pytest.fail("it did not wait")) == (b"now", [])
    theirs.close()
    ours.close()
