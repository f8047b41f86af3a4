"""Pods of an emulated Kubernetes and workers of a real Dask make room for jobs, and only what was closed is opened."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from cluster_agent.cli import main
from cluster_agent.elastic.dask_workers import DaskWorkers
from cluster_agent.elastic.drained_nodes import NodeDrain, Record
from cluster_agent.elastic.elastic_settings import DaskSettings, ElasticSettings, KubernetesSettings
from cluster_agent.elastic.engines import Cleared, Deadline, EngineError
from cluster_agent.elastic.kubernetes_pods import KubernetesPods, _count, _Going
from lab.emulated.emulated_kubernetes import EmulatedKubernetes, EmulatedPod
from tests.waiting import PATIENCE_S, within


class Engine:
    """Which nodes are open, by name; each call is noted."""

    name, piece = "engine", "pod"

    def __init__(self, *nodes: str) -> None:
        self.opened = dict.fromkeys(nodes, True)
        self.calls: list[str] = []
        self.is_gone = False

    def is_open(self, node: str, deadline: Deadline) -> bool | None:
        return self.opened.get(node)

    def close(self, node: str, deadline: Deadline) -> None:
        self._set(node, False)

    def open(self, nodes: list[str], deadline: Deadline) -> dict[str, str]:
        if self.is_gone:
            return dict.fromkeys(nodes, "the engine does not answer")
        for node in nodes:
            self._set(node, True)
        return {}

    def clear(self, nodes: list[str], grace_s: float, deadline: Deadline) -> dict[str, Cleared]:
        return {node: Cleared(1) for node in nodes if node in self.opened}

    def _set(self, node: str, opened: bool) -> None:
        if self.is_gone:
            raise EngineError("the engine does not answer")
        self.calls.append(f"{'open' if opened else 'close'} {node}")
        self.opened[node] = opened


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmulatedKubernetes]:
    with EmulatedKubernetes(["n01", "n02"], tmp_path) as made:
        yield made


def drain_of(at: Path, *engines: object, **given: float) -> tuple[NodeDrain, list[str]]:
    said: list[str] = []
    settings = ElasticSettings(**{"state": str(at / "state"), **given})  # type: ignore[arg-type]
    return NodeDrain(settings, engines, said.append), said  # type: ignore[arg-type]


def pods_of(server: EmulatedKubernetes) -> KubernetesPods:
    pytest.importorskip("kubernetes", reason="the client is missing: install kubernetes")
    return KubernetesPods(KubernetesSettings(str(server.kubeconfig)))


# --- what is undone


def test_an_epilog_opens_only_what_its_prolog_closed(tmp_path: Path) -> None:
    engine = Engine("n01", "n02")
    engine.opened["n02"] = False  # by an administrator
    drain, said = drain_of(tmp_path, engine)
    assert drain.drain("7", ["n01", "n02", "n03"])
    assert (engine.calls, drain.nodes()) == (["close n01"], ["n01"])
    assert [line.partition(",")[0] for line in said] == ["n01: pods: 1 ended", "n02: pods: 1 ended"]
    assert drain.undrain("8") and drain.undrain("7")
    assert engine.calls == ["close n01", "open n01"] and not engine.opened["n02"]
    assert drain.nodes() == [] and drain.undrain("7") and len(engine.calls) == 2


def test_a_node_that_two_jobs_had_is_opened_after_the_later_one(tmp_path: Path) -> None:
    engine = Engine("n01")
    drain, _ = drain_of(tmp_path, engine)
    assert drain.drain("7", ["n01"]) and drain.drain("8", ["n01"])
    assert drain.undrain("7") and not engine.opened["n01"] and drain.read("n01") == Record(["8"], ["engine"])
    assert drain.undrain("8") and engine.calls == ["close n01", "open n01"]


def test_a_node_that_cannot_be_opened_is_opened_by_a_later_epilog(tmp_path: Path) -> None:
    engine = Engine("n01", "n02")
    drain, said = drain_of(tmp_path, engine)
    drain.drain("7", ["n01"])
    engine.is_gone = True
    assert not drain.undrain("7") and said[-1] == "n01: the engine does not answer"
    assert not drain.drain("8", ["n02"])
    engine.is_gone = False
    assert drain.undrain("9") and engine.opened == {"n01": True, "n02": True}
    assert drain.undrain_all() and drain.nodes() == []


def test_a_prolog_that_was_killed_while_it_closed_is_undone(tmp_path: Path) -> None:
    class Killed(Engine):
        def close(self, node: str, deadline: Deadline) -> None:
            super().close(node, deadline)
            raise KeyboardInterrupt

    engine = Killed("n01")
    drain, _ = drain_of(tmp_path, engine)
    with pytest.raises(KeyboardInterrupt):
        drain.drain("7", ["n01"])
    assert not engine.opened["n01"] and drain.undrain("7") and engine.opened["n01"]


def test_placeholders_damage_and_names_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "e.toml").write_text(f'state = "{tmp_path}"\n[dask]\nscheduler = "tcp://127.0.0.1:1"\n')
    own = ["--settings", str(tmp_path / "e.toml")]
    assert main(["elastic", "drain", "7", "n01", "--name", "BEBIDA_NOOP", *own]) == 0
    (tmp_path / "n01.json").write_text("{")
    assert main(["elastic", "undrain", "7", "--name", "BEBIDA_NOOP", *own]) == 1, "a job may be renamed"
    capsys.readouterr()
    assert main(["elastic", "list", *own]) == 1
    assert "n01.json: cannot be read" in capsys.readouterr().err
    assert main(["elastic", "drain", "7", "../n01", *own]) == 2
    assert main(["elastic", "undrain", *own]) == 2
    (tmp_path / "e.toml").write_text("grace_s = 20\n[dask]\nscheduler = 'x'\n")
    assert main(["elastic", "drain", "7", "n02", *own]) == 2
    assert "grace_s 20 is longer than limit_s 15" in capsys.readouterr().err
    (tmp_path / "e.toml").write_text("")
    assert main(["elastic", "drain", "7", "n02", *own]) == 2
    assert "no engine is named" in capsys.readouterr().err
    (tmp_path / "e.toml").write_text("[kubernetes]\nkubeconfig = '/nowhere'\n")
    assert main(["elastic", "drain", "7", "n02", *own]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_node_that_is_damaged_or_busy_keeps_no_other_one_from_its_turn(tmp_path: Path) -> None:
    engine = Engine("n01", "n02", "n03")
    drain, said = drain_of(tmp_path, engine, grace_s=0.1, limit_s=0.3)
    assert drain.drain("7", ["n01", "n02", "n03"])
    path = tmp_path / "state" / "n01.json"
    good = path.read_bytes()
    path.write_text("{")
    said.clear()
    assert not drain.drain("8", ["n01", "n02"]) and "cannot be read" in said[0] and said[1].startswith("n02: pods: 1")
    said.clear()
    with drain._locked("n02", Deadline(1)):
        assert not drain.undrain("7")
    assert engine.opened == {"n01": False, "n02": False, "n03": True}
    assert "n01.json: cannot be read" in said[0] and said[1].startswith("n02: another prolog"), said
    assert not drain.undrain_all() and engine.opened["n02"] and drain.nodes() == ["n01"]
    path.write_bytes(good)
    assert drain.undrain("7") and engine.opened["n01"]


# --- Kubernetes


@pytest.mark.parametrize("eviction", ["v1", "v1beta1"])
def test_pods_get_their_grace_and_those_of_the_system_stay(tmp_path: Path, eviction: str) -> None:
    with EmulatedKubernetes(["n01", "n02"], tmp_path, eviction) as server:
        for number in range(40):
            server.run(EmulatedPod(f"p{number}", "n01", ends_s=0.2 if number else 60.0))
        server.run(EmulatedPod("daemon", "n01", owner="DaemonSet"))
        server.run(EmulatedPod("static", "n01", mirror=True))
        server.run(EmulatedPod("over", "n01", phase="Succeeded"))
        server.run(EmulatedPod("elsewhere", "n02"))
        server.late = [EmulatedPod("late", "n01")]
        drain, said = drain_of(tmp_path, pods_of(server), grace_s=1.0, limit_s=10.0)
        assert drain.drain("7", ["n01", "n99"]) and server.closed == {"n01": True, "n02": False}
        assert sorted(server.pods) == ["daemon", "elsewhere", "over", "static"]
        assert [pod.name for pod in server.ended if pod.was_cut] == ["p0"] and len(server.ended) == 41
        ended, cut = re.match(r"n01: pods: (\d+) ended, (\d+|none) cut off, after ", said[0]).groups()  # type: ignore[union-attr]
        assert (int(ended), cut) in ((40, "1"), (41, "none")), "a busy machine may not look near the end of the grace"
        assert drain.undrain("7") and server.closed == {"n01": False, "n02": False}


def test_pods_that_were_there_until_their_grace_was_nearly_over_count_as_cut_off() -> None:
    found, going = Cleared(), {name: _Going() for name in ("soon", "late", "refused")}
    going["soon"].since_s = going["late"].since_s = 100.0
    _count(found, going, {"soon", "late", "refused"}, 5.0, 104.4)
    _count(found, going, {"late", "refused"}, 5.0, 104.6)
    assert (found.ended, found.cut) == (1, 0)
    _count(found, going, set(), 5.0, 105.2)
    assert (found.ended, found.cut, going) == (2, 1, {})


def test_pods_that_a_budget_guards_are_deleted_in_time_for_their_grace(
    server: EmulatedKubernetes, tmp_path: Path
) -> None:
    server.run(EmulatedPod("always", "n01", guarded=-1))
    server.run(EmulatedPod("twice", "n01", guarded=2))
    drain, said = drain_of(tmp_path, pods_of(server), grace_s=1.0, limit_s=4.0)
    assert drain.drain("7", ["n01"]) and not server.pods
    assert not any(pod.was_cut for pod in server.ended) and "2 ended, none cut off" in said[0]
    assert server.requests["DELETE namespaces"] == 1 and server.requests["POST eviction"] > 3


def test_odd_answers_are_asked_for_again_and_silence_ends_at_the_limit(
    server: EmulatedKubernetes, tmp_path: Path
) -> None:
    server.run(EmulatedPod("p", "n01"))
    server.faults = [500, 409, 503, 429, 410, 410, 500, 409]
    drain, said = drain_of(tmp_path, pods_of(server), grace_s=1.0, limit_s=10.0)
    assert drain.drain("7", ["n01"]) and not server.pods and server.closed["n01"], said
    drain, said = drain_of(tmp_path / "b", pods_of(server), grace_s=0.1, limit_s=1.0)
    server.faults = ["silence"] * 20
    begun_s = time.monotonic()
    assert not drain.drain("8", ["n02"]) and time.monotonic() - begun_s < 3.0
    assert "Kubernetes at http://127.0.0.1:" in said[0] and said[0].count("\n") == 0, said
    server.faults = ["garbage"] * 20
    assert not drain.drain("9", ["n02"]) and "an answer that is none" in said[-1]
    server.faults = [403] * 20
    assert not drain.drain("9", ["n02"]) and "403 as planned" in said[-1]


def test_a_tls_that_fails_is_no_success(server: EmulatedKubernetes, tmp_path: Path) -> None:
    """The client of Kubernetes raises what it has for an answer, with a status of 0."""
    drain, said = drain_of(tmp_path, pods_of(server), grace_s=0.1, limit_s=0.4)
    assert drain.drain("7", ["n01"])
    good = server.kubeconfig.read_text()
    server.kubeconfig.write_text(good.replace("http://", "https://"))
    broken, said = drain_of(tmp_path, pods_of(server), grace_s=0.1, limit_s=0.4)
    assert not broken.undrain("7") and server.closed["n01"] and broken.nodes() == ["n01"]
    assert "does not answer" in said[-1] or "has not answered" in said[-1], said


def test_a_list_of_many_pages_is_read_whole(server: EmulatedKubernetes, tmp_path: Path) -> None:
    for number in range(1100):
        server.run(EmulatedPod(f"p{number}", "n01", ends_s=0.0))
    pods = pods_of(server)
    assert len(pods._pods("n01", Deadline(20))) == 1100


# --- Dask


class DaskCluster:
    """A scheduler and workers as processes of their own, one for each name."""

    def __init__(self, at: Path) -> None:
        file = at / "scheduler.json"
        own = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
        self._processes = [self._start("dask_scheduler", *own)]
        assert within(PATIENCE_S, lambda: file.exists() and file.read_text().endswith("}"))
        self.url = json.loads(file.read_text())["address"]

    def worker(self, name: str) -> subprocess.Popen[bytes]:
        self._processes.append(self._start(*self.words(name)))
        return self._processes[-1]

    def words(self, name: str) -> list[str]:
        return ["dask_worker", self.url, "--name", name, "--no-nanny", "--nthreads", "1", "--no-dashboard"]

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(self, module: str, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.{module}", *words]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def test_a_dask_application_loses_no_task_while_a_job_has_a_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = DaskCluster(tmp_path)
    try:
        gone = cluster.worker("n01")
        cluster.worker("n02")
        started = tmp_path / "started"
        os.mkfifo(started)
        settings = tmp_path / "e.toml"
        settings.write_text(
            f'grace_s = 3\nstate = "{tmp_path}/state"\n[dask]\nscheduler = "{cluster.url}"\n'
            f'start = ["/bin/sh", "-c", "echo {{node}} > {started}"]\n'
        )
        own = ["--settings", str(settings)]
        with Client(cluster.url, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=PATIENCE_S)
            ran = tmp_path / "ran"

            def piece(number: int) -> int:
                time.sleep(0.1)
                with ran.open("a") as file:
                    file.write(f"{number}\n")
                return number

            futures = client.map(piece, range(60))
            assert within(PATIENCE_S, lambda: ran.exists())
            assert main(["elastic", "drain", "7", "n01", "n03", *own]) == 0
            said = capsys.readouterr().err
            assert said.startswith("n01: tasks: none cut off, after ") and "n03" not in said, said
            assert within(PATIENCE_S, lambda: gone.poll() == 0)
            names = [one["name"] for one in client.scheduler_info(n_workers=-1)["workers"].values()]
            assert names == ["n02"]
            back = threading.Thread(target=lambda: cluster.worker(started.read_text().strip()))
            back.start()
            assert main(["elastic", "undrain", "7", *own]) == 0
            back.join(PATIENCE_S)
            client.wait_for_workers(2, timeout=PATIENCE_S)
            assert client.gather(futures) == list(range(60))
            assert sorted(map(int, ran.read_text().split())) == list(range(60)), "none was computed twice"
    finally:
        cluster.end()


class Workers(DaskWorkers):
    """Their scheduler is a dictionary of names and addresses; ``start`` and ``stop`` write what they are called for."""

    def __init__(self, at: Path, **names: str) -> None:
        self.log, self.names, self.looks, self.is_gone = at / "log", names, 0, False
        words = ["/bin/sh", "-c", f"echo $0 $1 >> {self.log}; test $1 != n09"]
        super().__init__(DaskSettings("tcp://s:1", [*words, "start", "{node}"], [*words, "stop", "{node}"]))

    def _ask(self, deadline: Deadline, name: str, **given: Any) -> Any:
        if name == "retire_workers":
            if self.is_gone:
                raise EngineError("the scheduler is gone")
            return self.names.clear() if given["remove"] else None
        self.looks += 1
        if self.looks == 3:
            self.names["n05"] = "10.0.0.5"
        return {"workers": {f"tcp://{at}:{n}": {"name": name.replace("_", "-"), "host": at, "last_seen": self.looks}
                            for n, (name, at) in enumerate(self.names.items())}}  # fmt: skip

    def ran(self) -> list[str]:
        found = sorted(self.log.read_text().splitlines()) if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return found


def test_workers_that_are_starting_are_awaited_so_that_the_next_job_finds_them(tmp_path: Path) -> None:
    workers = Workers(tmp_path)
    assert workers.open(["n05"], Deadline(PATIENCE_S)) == {} and workers.looks == 3 and workers.ran() == ["start n05"]
    assert workers.is_open("n05", Deadline(1))
    failed = workers.open(["n04", "n05", "n09"], Deadline(0.3))
    assert sorted(failed) == ["n04", "n09"] and "no worker has come" in failed["n04"] and "with 1" in failed["n09"]
    drain, said = drain_of(tmp_path, late := Workers(tmp_path), grace_s=0.1, limit_s=1.5)
    (tmp_path / "state").mkdir()
    drain._keep("n04", Record(["6"], ["dask"]))
    late.ran()
    assert drain.drain("7", ["n03", "n04"]) and late.ran() == ["stop n04"], said


def test_a_scheduler_or_a_command_that_fails_leaves_no_worker_of_another_node(tmp_path: Path) -> None:
    workers = Workers(tmp_path, n01="10.0.0.1", n09="10.0.0.9", n02="10.0.0.2")
    found = workers.clear(["n01", "n02", "n09"], 0.0, Deadline(3))
    assert workers.ran() == ["stop n01", "stop n02", "stop n09"]
    assert [node for node, one in found.items() if one.wrong] == ["n09"]
    workers = Workers(tmp_path, n01="10.0.0.1", n02="10.0.0.2")
    workers.is_gone = True
    with pytest.raises(EngineError, match="is gone"):
        workers.clear(["n01", "n02"], 0.0, Deadline(3))
    assert workers.ran() == ["stop n01", "stop n02"]


def test_a_worker_belongs_to_the_node_of_its_name_and_each_name_is_looked_up_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    def resolve(name: str) -> tuple[str, list[str], list[str]]:
        looked.append(name)
        known = {"gpu": "10.0.0.1", "gpu-2": "10.0.0.2", "gpu-3": "10.0.0.3"}
        if name not in known:
            raise OSError
        return name, [], [known[name]]

    monkeypatch.setattr(socket, "gethostbyname_ex", resolve)
    named = {"gpu_2": "10.0.0.2", "gpu_0": "10.1.0.1", "gpu_x_1": "10.1.0.2", "other": "10.0.0.1"}
    workers = Workers(tmp_path, **named)
    for _ in range(2):
        mine = workers._workers(["gpu"], Deadline(1))["gpu"]
    assert [one["name"] for one in mine.values()] == ["gpu-0", "other"]
    assert sorted(looked) == ["gpu", "gpu-0", "gpu-2"]
    without = Workers(tmp_path, gpu_5="10.0.0.5")
    assert [len(one) for one in without._workers(["gpu", "gpu-5"], Deadline(1)).values()] == [0, 1]


def test_a_dask_scheduler_that_does_not_answer_is_one_line_and_the_job_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "e.toml"
    settings.write_text(f'grace_s = 0\nlimit_s = 1\nstate = "{tmp_path}"\n[dask]\nscheduler = "tcp://127.0.0.1:9"\n')
    begun_s = time.monotonic()
    assert main(["elastic", "drain", "7", "n01", "--settings", str(settings)]) == 1
    said = capsys.readouterr().err.splitlines()
    assert time.monotonic() - begun_s < 10 and len(said) == 2 and "Dask at tcp://127.0.0.1:9 does not answer" in said[0]
