"""Lines of programs that stay: with the time of day by hand, without it where the journal stamps them."""

from __future__ import annotations

import os
import re
import subprocess
import sys

SAY = "from foundation.shell.log import logger; logger('clusterctl serve')('listening')"
STAMPED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d clusterctl serve: listening\n")


def said(stream: str | None) -> str:
    """What comes through a pipe of which JOURNAL_STREAM says ``stream`` (None: that it leads to the journal)."""
    reading, writing = os.pipe()
    found = os.fstat(writing)
    environment = os.environ | {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}" if stream is None else stream}
    subprocess.run([sys.executable, "-c", SAY], stderr=writing, env=environment, check=True)
    os.close(writing)
    with os.fdopen(reading) as file:
        return file.read()


def test_a_line_by_hand_has_the_time_of_day():
    assert STAMPED.fullmatch(said(""))


def test_a_line_for_the_journal_has_none_since_the_journal_adds_it():
    assert said(None) == "clusterctl serve: listening\n"


def test_a_line_of_a_service_that_is_sent_to_a_file_has_the_time_of_day():
    assert STAMPED.fullmatch(said("8:12345"))
