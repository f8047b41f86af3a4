"""Numbers, words and lists as the kernel reads and writes them."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmu.cpulist import parse_list
from twin.files.sysfs_nodes import Nodes, as_string, boolean, mask, ranges, unsigned, word


def test_a_number_ends_at_the_first_nul_whatever_lies_behind_it() -> None:
    assert unsigned(as_string(b"150000000\0" + b"\x17" * 16), base=10) == 150_000_000


@pytest.mark.parametrize(
    ("text", "value"), [("0\n", 0), ("+7", 7), ("0x1e8480\n", 2_000_000), ("010", 8), ("2700000", 2_700_000)]
)
def test_numbers_are_read_in_c_notation(text: str, value: int) -> None:
    assert unsigned(text) == value


@pytest.mark.parametrize("text", ["", "\n", " 5", "5 ", "5\n\n", "5kHz", "-5", "08", "0x", "1.5"])
def test_what_is_no_number_is_einval(text: str) -> None:
    with pytest.raises(OSError) as refusal:
        unsigned(text)
    assert refusal.value.errno == errno.EINVAL


def test_a_number_too_large_for_its_type_is_erange() -> None:
    assert unsigned(str(2**32 - 1), bits=32) == 2**32 - 1
    with pytest.raises(OSError) as refusal:
        unsigned(str(2**32), bits=32)
    assert refusal.value.errno == errno.ERANGE


def test_booleans_are_recognised_by_their_first_letters() -> None:
    assert [boolean(text) for text in ("1\n", "yes", "on", "T")] == [True] * 4
    assert [boolean(text) for text in ("0", "no", "off\n", "False")] == [False] * 4
    with pytest.raises(OSError):
        boolean("o")


def test_a_word_is_cut_at_its_length_as_sscanf_does() -> None:
    assert word(" performance now\n") == "performance"
    assert word("conservativelylong", 15) == "conservativelyl"


@given(st.sets(st.integers(0, 400)))
def test_a_list_of_ranges_reads_back_as_the_same_cpus(cpus: set[int]) -> None:
    assert set(parse_list(ranges(cpus))) == cpus


@given(st.integers(1, 400).flatmap(lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1)))))
def test_a_mask_has_one_bit_per_cpu_and_words_of_eight_digits(case: tuple[int, set[int]]) -> None:
    size, cpus = case
    words = mask(cpus, size).split(",")
    assert int("".join(words), 16) == sum(1 << cpu for cpu in cpus)
    assert all(len(word) == 8 for word in words[1:])
    assert len(words) == (size + 31) // 32


def test_links_read_back_relative_and_lead_to_the_same_file() -> None:
    nodes = Nodes()
    nodes.file("/sys/devices/virtual/a/b/value", "1\n")
    nodes.link("/sys/class/c/b", "/sys/devices/virtual/a/b")
    nodes.link("/sys/devices/virtual/a/b/subsystem", "/sys/class/c")
    assert nodes.links["/sys/class/c/b"] == "../../devices/virtual/a/b"
    assert nodes.real("/sys/class/c/b/value") == "/sys/devices/virtual/a/b/value"
    assert nodes.real("/sys/class/c/b/subsystem/b/value") == "/sys/devices/virtual/a/b/value"
    assert nodes.names()["/sys/class/c/b/value"] == "/sys/devices/virtual/a/b/value"


def test_a_link_that_leads_to_itself_is_eloop() -> None:
    nodes = Nodes()
    nodes.link("/sys/a", "/sys/a")
    with pytest.raises(OSError) as refusal:
        nodes.real("/sys/a")
    assert refusal.value.errno == errno.ELOOP
