"""Files that somebody else wrote are read, or refused in one line; nothing else. ``make fuzz`` feeds a million of each.

The seed is fixed, so that these are the same files each time. With each of four seeds, the fuzzers find the last of all
planted faults within the first 2,264 files.
"""

from __future__ import annotations

import random

import pytest

from tests.fuzzing.foreign_files import ENCODINGS, encoded
from tests.fuzzing.fuzzer import Fuzzer
from tests.fuzzing.planted import FAULTS, planted
from tests.fuzzing.readers import readers

FILES = 3_000
UNTIL_FOUND = 4_000
READERS = readers()


@pytest.mark.parametrize("name", READERS)
def test_files_that_are_nearly_right_are_read_or_refused_in_one_line(name: str) -> None:
    fuzzer = Fuzzer(name, READERS[name], 1)
    fuzzer.feed(FILES)
    assert list(fuzzer.found.values()) == []
    assert fuzzer.went[f"{name}: taken"] > 0 < fuzzer.went[f"{name}: refused"]


@pytest.mark.parametrize("name", [name for name in READERS if not READERS[name].damage])
def test_a_file_means_the_same_in_every_encoding(name: str) -> None:
    fuzzer, rng, left = Fuzzer(name, READERS[name], 1), random.Random(1), set(ENCODINGS)
    for text, must in fuzzer.seeds:
        while left:
            encoding, raw = encoded(rng, fuzzer.sealed(str(text)))
            if encoding in left:
                left.remove(encoding)
                assert fuzzer.judged(raw) == ("taken", must), encoding


@pytest.mark.parametrize("name", ["event log", "plan", "state"])
@pytest.mark.parametrize(
    "raw", [b"[" * 3000, b'{"version":1,"plan":1,"event_log":' + b"[" * 3000, b'{"version":"\x91"}']
)
def test_an_input_that_once_was_a_finding_is_none_any_more(name: str, raw: bytes) -> None:
    assert Fuzzer(name, READERS[name], 1).judged(raw)[0] == ""


@pytest.mark.parametrize(("name", "fault"), [(name, at) for name in FAULTS for at in range(len(FAULTS[name]))])
def test_a_fault_planted_in_a_reader_is_found(name: str, fault: int) -> None:
    name_of_reader = name.removesuffix(" in C")
    fuzzer = Fuzzer(name_of_reader, READERS[name_of_reader], 1)
    with planted(*FAULTS[name][fault]):
        assert fuzzer.feed(UNTIL_FOUND // READERS[name_of_reader].cost, stops=True), "not found"


def test_every_reader_has_five_planted_faults() -> None:
    assert {name: len(faults) for name, faults in FAULTS.items()} == dict.fromkeys([*READERS, "swf in C"], 5)
