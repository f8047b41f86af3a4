"""What others write into shared memory is taken within bounds or refused. Long runs: ``shared_memory.py``."""

from __future__ import annotations

from tests.fuzzing.shared_memory import fuzz_rings, fuzz_words


def test_whatever_becomes_of_a_ring_chains_are_taken_within_bounds_or_refused() -> None:
    went = fuzz_rings(20_000, 1)
    assert went.total() == 20_000
    assert min(went["answered"], went["refused"], went["nothing waits"]) > 1000


def test_whatever_lies_in_fast_channels_what_is_enforced_could_have_been_requested() -> None:
    went = fuzz_words(100_000, 1)
    assert min(went["levels"], went["caps"], went["no caps"]) > 0
