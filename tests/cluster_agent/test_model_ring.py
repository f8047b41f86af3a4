"""The ring of ended jobs: bounded, checked record by record, and whole again after a kill, damage or a full disk."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from cluster_agent.errors import ClusterError
from cluster_agent.model_service import job_ring
from cluster_agent.model_service.job_ring import RECORD, WORDS, JobRing, Records, checks_of

KEPT = 1000


def some(count: int, begin: int = 0) -> Records:
    found = np.zeros(count, RECORD)
    found["job"] = np.arange(begin, begin + count)
    found["node_w"], found["nodes"], found["user"] = 200.0, 2, found["job"] % 7
    return found


def jobs_of(ring: JobRing, since: int = 0) -> list[int]:
    return [int(job) for part in ring.since(since) for job in part["job"]]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_ring, "CHUNK", 64)


@pytest.mark.parametrize("batches", [(1,), (999, 1), (1000, 1), (700, 700, 700), (1, 2500), (64, 936, 65)])
def test_the_newest_jobs_are_there_in_order_and_no_more_than_there_is_room_for(
    tmp_path: Path, batches: tuple[int, ...]
) -> None:
    whole = 0
    for count in batches:
        ring = JobRing(tmp_path / "ring", KEPT)
        ring.append(some(count, whole))
        whole += count
        ring.close()
    ring = JobRing(tmp_path / "ring", 5)  # its size is that of the file
    assert jobs_of(ring) == list(range(max(0, whole - KEPT), whole))
    assert (tmp_path / "ring").stat().st_size <= (KEPT + 1) * RECORD.itemsize
    assert [int(job) for job in ring.last(3)["job"]] == list(range(max(0, whole - 3), whole))


def test_a_reader_goes_on_where_it_was_with_and_without_knowing_the_newest(tmp_path: Path) -> None:
    ring = JobRing(tmp_path / "ring", KEPT)
    ring.append(some(900))
    read = ring.head
    ring.append(some(300, 900))
    ring.close()
    for hint in (0, 1, 400, 900, read, 1200, 5000):
        again = JobRing(tmp_path / "ring", KEPT, hint)
        assert again.head == 1200 and jobs_of(again, read) == list(range(900, 1200)), hint
        again.close()


@pytest.mark.parametrize("cut", [1, RECORD.itemsize - 1, RECORD.itemsize, 5 * RECORD.itemsize + 3])
def test_a_file_that_was_cut_off_loses_its_end_alone_and_goes_on_from_there(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "ring"
    ring = JobRing(path, KEPT)
    ring.append(some(100))
    ring.close()
    os.truncate(path, path.stat().st_size - cut)
    ring = JobRing(path, KEPT)
    left = 100 - -(-cut // RECORD.itemsize)
    assert ring.head == left and jobs_of(ring) == list(range(left))
    ring.append(some(3, 500))
    assert jobs_of(ring) == [*range(left), 500, 501, 502] and ring.damaged == 0


def test_a_change_of_any_word_is_noticed_and_costs_that_record_alone(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    ring = JobRing(path, KEPT)
    ring.append(some(100))
    ring.close()
    whole = path.read_bytes()
    for word in range(WORDS):
        for bit in (0, 63):
            damaged = bytearray(whole)
            damaged[51 * RECORD.itemsize + 8 * word + bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            ring = JobRing(path, KEPT)
            assert jobs_of(ring) == [job for job in range(100) if job != 50], (word, bit)
            assert ring.damaged == 1
            ring.close()
            hinted = JobRing(path, KEPT, hint=10)
            assert hinted.head == 100
            hinted.close()


def test_records_of_an_earlier_lap_or_another_place_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    ring = JobRing(path, KEPT)
    ring.append(some(900))
    ring.append(some(600, 900))
    ring.close()
    content = bytearray(path.read_bytes())
    at = RECORD.itemsize * (1 + 700)  # of the first lap, still valid
    content[RECORD.itemsize * 101 : RECORD.itemsize * 102] = content[at : at + RECORD.itemsize]
    path.write_bytes(content)
    ring = JobRing(path, KEPT)
    assert ring.head == 1500 and ring.damaged == 0
    assert jobs_of(ring) == [job for job in range(500, 1500) if job != 1100] and ring.damaged == 1


def test_zeros_are_no_record() -> None:
    assert int(checks_of(np.zeros(1, RECORD))[0]) != 0


def test_a_full_disk_adds_nothing_and_the_next_append_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = JobRing(tmp_path / "ring", KEPT)
    ring.append(some(10))
    really = os.pwrite

    def full(file: int, content: memoryview, at: int) -> int:
        if at > 15 * RECORD.itemsize:
            raise OSError(28, os.strerror(28))
        return really(file, content[: RECORD.itemsize], at)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ClusterError, match=r"ring: cannot be written: No space left on device; nothing was added"):
        ring.append(some(10, 10))
    assert ring.head == 10 and jobs_of(ring) == list(range(10))
    monkeypatch.undo()
    ring.append(some(2, 70))
    assert jobs_of(ring) == [*range(10), 70, 71]


def test_a_file_that_is_no_ring_or_of_a_newer_version_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    JobRing(path, KEPT).close()
    header = path.read_bytes()
    for content, said in (
        (b"something else".ljust(400), "is no ring of jobs"),
        (header.replace(b"version 1", b"version 2"), "made by a newer nodectl"),
    ):
        path.write_bytes(content)
        with pytest.raises(ClusterError, match=said) as error:
            JobRing(path, KEPT)
        assert "\n" not in str(error.value) and path.read_bytes() == content


def test_a_forgotten_users_jobs_are_nobodys(tmp_path: Path) -> None:
    ring = JobRing(tmp_path / "ring", KEPT)
    ring.append(some(200))
    assert ring.forget(3) == len(range(3, 200, 7))
    ring.close()
    again = JobRing(tmp_path / "ring", KEPT)
    left = again.last(200)
    assert again.head == 200 and again.damaged == 0 and not (left["user"] == 3).any() and len(left) == 200
