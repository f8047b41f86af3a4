"""Versions and the champion on the disk: whole or not there, whatever kills or refuses a step; data, and ours alone."""

from __future__ import annotations

import io
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.model_service.group_table import GroupTable, TableError
from cluster_agent.model_service.model_registry import CARD, METRICS, MODEL, Change, Registry, locked
from cluster_agent.model_service.model_training import train
from tests.cluster_agent.ended_jobs import records

CALLS = ("open", "write", "fsync", "fchmod", "replace", "rename", "mkdir", "makedirs", "unlink", "chmod")
"""The system calls at which a step is killed or refused; ``open`` is that of ``os``, which ``tempfile`` uses, too."""


class Shim:
    """``os`` of this process, of which the call number ``at`` does ``what`` in place of its work."""

    def __init__(self, patch: pytest.MonkeyPatch, what: Callable[[], Any]) -> None:
        self.count, self.at, self._what = 0, -1, what
        for name in CALLS:
            patch.setattr(os, name, self._wrapped(getattr(os, name)))

    def _wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def shim(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            return self._what() if self.count == self.at else call(*arguments, **options)

        return shim


def full() -> Any:
    raise OSError(28, os.strerror(28))


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """With version 1 as champion and version 2 as candidate."""
    made = Registry(tmp_path / "models", "watts")
    for seed in (1, 2):
        train(made, records(made.path.parent, 60, seed=seed))
    made.change(Change(1, 0, 1.0, "root", "the first", is_forced=True))
    return made


def promote(registry: Registry) -> None:
    registry.change(Change(2, 1, 2.0, "root", "better"))


def add(registry: Registry) -> None:
    train(registry, records(registry.path.parent, 60, seed=3))


def state(registry: Registry) -> tuple[int, list[int], list[int]]:
    """The champion, the changes, and the versions, each of which can be read."""
    for number in registry.versions():
        registry.version(number)
    champion = registry.champion()
    return champion.version, [change.version for change in champion.changes], registry.versions()


BEFORE = (1, [1], [1, 2])
STEPS = {"promotion": (promote, (2, [2, 1], [1, 2])), "training": (add, (1, [1], [1, 2, 3]))}


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_call_a_step_is_not_begun_or_done(registry: Registry, tmp_path: Path, step: str) -> None:
    act, after = STEPS[step]
    copy, seen = tmp_path / "copy", list[tuple[int, list[int], list[int]]]()
    shutil.copytree(registry.path.parent, copy)
    for at in range(1, 200):
        shutil.rmtree(registry.path.parent)
        shutil.copytree(copy, registry.path.parent)
        child = os.fork()
        if child == 0:
            shim = Shim(pytest.MonkeyPatch(), lambda: os._exit(9))
            shim.at = at
            try:
                act(registry)
            finally:
                os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        seen.append(state(registry))
        if status == 0:
            break
        act(registry)  # and it can be done then
        assert state(registry)[0] == after[0] and not list(registry.path.glob(".new-*"))
    assert at >= 4 and seen[-1] == after
    assert seen[0] == BEFORE and {repr(one) for one in seen} == {repr(BEFORE), repr(after)}
    first = next(at for at, one in enumerate(seen) if one == after)
    assert all(one == BEFORE for one in seen[:first]) and all(one == after for one in seen[first:])


@pytest.mark.parametrize("step", STEPS)
def test_a_full_disk_at_any_call_is_one_line_and_leaves_all_as_it_was(
    registry: Registry, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    act, after = STEPS[step]
    for at in range(1, 200):
        with monkeypatch.context() as patch:
            shim = Shim(patch, full)
            shim.at = at
            try:
                act(registry)
                refused = ""
            except ClusterError as error:
                refused = str(error)
        if shim.count < at:
            break
        assert not list(registry.path.glob(".new-*"))
        assert "\n" not in refused
        if refused and state(registry) == BEFORE:
            assert "No space left on device" in refused, at
        else:  # all was written by then, but for the sync of a folder
            assert state(registry) == after
            break
    assert at >= 4


def test_the_same_jobs_give_the_same_bytes_whatever_their_order(tmp_path: Path) -> None:
    found = records(tmp_path, 500)
    shuffled = found[np.random.default_rng(1).permutation(len(found))]
    for name, jobs in (("a", found), ("b", shuffled)):
        train(Registry(tmp_path / name, "watts"), jobs)
    for file in (MODEL, CARD, METRICS):
        first, second = ((tmp_path / name / "watts" / "1" / file).read_bytes() for name in ("a", "b"))
        assert first == second and len(first) > 50


def test_what_was_changed_or_cut_off_or_is_of_others_is_refused_in_one_line(registry: Registry) -> None:
    folder = registry.path / "1"
    whole = {file: (folder / file).read_bytes() for file in (MODEL, CARD, METRICS)}

    def refused(said: str) -> None:
        with pytest.raises(ClusterError, match=said) as error:
            registry.version(1)
        assert "\n" not in str(error.value) and str(folder) in str(error.value)

    for file, content in whole.items():
        for damaged in (content[: len(content) // 2], b"", content[:-9] + b"x" + content[-8:]):
            (folder / file).write_bytes(damaged)
            refused(": was changed|: its end is missing")  # the folder's name has the words, too
        (folder / file).unlink()
        refused("is missing")
        (folder / file).write_bytes(content)
        (folder / file).chmod(0o666)
        refused("others may write it")
        (folder / file).chmod(0o644)
        if os.geteuid() == 0:
            os.chown(folder / file, 12345, 12345)
            refused("belongs to user 12345")
            os.chown(folder / file, 0, 0)
        registry.version(1)
    (folder / "model.pkl").write_bytes(pickle.dumps({"watts": 1}))
    refused("is code, not data")
    (folder / "model.pkl").unlink()
    os.rename(folder, registry.path / "7")
    with pytest.raises(ClusterError, match="folders were moved"):
        registry.version(7)
    with pytest.raises(WrongUseError, match=r"there is no version 1 \(there is 2, 7\)"):
        registry.version(1)


def resealed(path: Path, change: Callable[[str], str]) -> None:
    from foundation.sealed_file import sealed, sealed_text

    path.write_text(sealed(change(sealed_text(path))))


def test_a_folder_of_a_newer_version_is_refused_and_stays(registry: Registry) -> None:
    for path, read in ((registry.path / "1" / CARD, lambda: registry.version(1)),
                       (registry.path / "champion", registry.champion)):  # fmt: skip
        resealed(path, lambda text: re.sub(r"^format = 1$", "format = 2", text, flags=re.MULTILINE))
        content = path.read_bytes()
        with pytest.raises(ClusterError, match=r"made by a newer nodectl \(format 2, this one reads 1\)"):
            read()
        assert path.read_bytes() == content


def arrays(registry: Registry) -> dict[str, Any]:
    with np.load(registry.path / "1" / MODEL, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def content_of(given: dict[str, Any], **options: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **given, **options)
    return file.getvalue()


def test_a_table_that_is_none_or_predicts_what_cannot_be_is_refused(registry: Registry) -> None:
    good = arrays(registry)
    GroupTable.of_content(content_of(good))

    def changed(name: str, value: Any) -> bytes:
        return content_of({**good, name: value})

    nan, low, below = (good["watts0"].copy() for _ in range(3))
    nan[1, 1], low[0, 0], below[0, 2] = np.nan, -1.0, 0.1
    for content, said in (
        (b"", "is no file of NumPy"),
        (b"PK\x03\x04 and then nothing", "is no file of NumPy"),
        (pickle.dumps(good), "is no file of NumPy"),
        (changed("keys0", np.array([os.getcwd], object)), "has objects, which are code"),
        (changed("watts0", nan), "no number"),
        (changed("watts0", low), "watts that cannot be"),
        (changed("watts0", below), "watts that cannot be"),
        (changed("watts0", good["watts0"][:-1]), "another shape"),
        (changed("keys0", good["keys0"][::-1]), "not in order"),
        (changed("more", good["keys0"]), "other arrays"),
        (content_of({name: value for name, value in good.items() if name != "jobs3"}), "other arrays"),
        (changed("keys0", good["keys0"].astype(np.float64)), "another shape"),
    ):
        with pytest.raises(TableError, match=said):
            GroupTable.of_content(content)


def test_a_table_that_unpacks_to_very_much_is_refused(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster_agent.model_service.group_table.MOST_BYTES", 1000)
    with pytest.raises(TableError, match="unpacks to more"):
        GroupTable.of_content(content_of(arrays(registry)))


def test_one_process_at_a_time_changes_the_models_and_only_their_owner(tmp_path: Path) -> None:
    busy = pytest.raises(ClusterError, match="another `clusterctl models` changes it")
    with locked(tmp_path), busy, locked(tmp_path, patience_s=0.1):
        pass
    with locked(tmp_path):
        pass
    if os.geteuid() == 0:
        os.chown(tmp_path, 12345, 12345)
        with pytest.raises(ClusterError, match="belongs to user 12345, and this is user 0"), locked(tmp_path):
            pass
