"""``clusterctl models run --mqtt``: jobs that come by a real broker, and results that it keeps. Whoever writes to the
broker can cost the models a bounded time and nothing else."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cluster_agent.cli import main
from cluster_agent.commands import metrics
from cluster_agent.commands.learning import model_broker, model_service
from cluster_agent.errors import ClusterError
from cluster_agent.model_service.job_records import JobWords, open_ring
from cluster_agent.model_service.model_registry import Change, Registry
from cluster_agent.model_service.model_training import train
from cluster_agent.model_service.mqtt_jobs import JobsOfTopic, message_of
from foundation.mqtt import fetching
from foundation.mqtt.examon_topics import Message, Source
from foundation.mqtt.fetching import Received
from foundation.mqtt.mqtt_settings import MqttSettings
from foundation.mqtt.publisher import publish_once
from tests.cluster_agent.ended_jobs import HOUR_S, ended, history_row, records, submission
from tests.mosquitto import Broker, broker, listening
from tests.waiting import PATIENCE_S, within

HEAD = Source("site", "test", "clusterctl_pub")
RESULTS = "org/site/cluster/test/plugin/clusterctl_models_pub/chnl/data/model/watts"
MORE = ("allow_anonymous true", "max_queued_messages 200000")


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Broker]:
    with broker(tmp_path / "broker", *MORE) as made:
        yield made


def jobs(count: int, begin_s: float) -> list[Message]:
    """Messages of jobs that have ended, one an hour."""
    rows = [history_row(job) for job in ended(count, begin_s)]
    made = [message_of(row, submission(at), HEAD) for at, row in enumerate(rows)]
    return [one for one in made if one is not None]


def site(tmp_path: Path, one: Broker) -> tuple[Path, Path]:
    """A folder with a champion, and settings."""
    folder, settings = tmp_path / "models", tmp_path / "cluster.toml"
    settings.write_text(f'[mqtt]\nbroker = "127.0.0.1:{one.port}"\norg = "site"\ncluster = "test"\n')
    registry = Registry(folder, "watts")
    train(registry, records(folder, 400))
    registry.change(Change(1, 0, 1.0, "root", "by the test", is_forced=True))
    return folder, settings


def run(folder: Path, settings: Path) -> int:
    return main(["models", "run", "--mqtt", str(settings), "--folder", str(folder)])


@pytest.fixture
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(place: object, request: object) -> object:
        raise ClusterError("no cluster agent: No such file or directory")

    monkeypatch.setattr(model_service, "rows_since", nobody)
    monkeypatch.setattr(model_service, "rows_of", nobody)


def published(one: Broker, messages: list[Message]) -> None:
    assert publish_once(one.settings(), "head", messages, PATIENCE_S) == ""


def test_jobs_that_ended_between_two_runs_come_by_the_broker_and_results_are_kept_there(
    one: Broker, tmp_path: Path, no_agent: None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, settings = site(tmp_path, one)
    assert run(folder, settings) == 0
    assert "jobs come from the broker alone" in capsys.readouterr().err
    begin_s = time.time() - 400 * HOUR_S
    published(one, jobs(350, begin_s))
    assert run(folder, settings) == 0
    found = capsys.readouterr()
    assert found.out.startswith("350 jobs have ended since the last run") and "left out" not in found.err
    published(one, jobs(350, begin_s))  # of a head that was started again
    assert run(folder, settings) == 0
    found = capsys.readouterr()
    assert found.out.startswith("0 jobs") and "of 350 jobs were left out: 350 known already" in found.err
    with listening(one, "org/site/cluster/test/plugin/clusterctl_models_pub/#") as late:
        wanted = {f"{RESULTS}/clusterctl_model_{name}" for name in ("predictions", "version", "error")}
        assert within(PATIENCE_S, lambda: wanted <= late.topics().keys()), "they come in any order"
        topics = late.topics()
    assert topics[f"{RESULTS}/clusterctl_model_version"].startswith("1;")
    assert float(topics[f"{RESULTS}/clusterctl_model_error"].split(";")[0]) < 0.1
    predictions = json.loads(topics[f"{RESULTS}/clusterctl_model_predictions"].rpartition(";")[0])
    assert predictions["version"] == 1 and predictions["jobs"] == []
    Registry(folder, "watts").change(Change(0, 1, 2.0, "root", "by the test", is_rollback=True))
    assert run(folder, settings) == 0
    with listening(one, "org/site/cluster/test/plugin/clusterctl_models_pub/#") as late:
        assert within(PATIENCE_S, lambda: f"{RESULTS}/clusterctl_model_version" in late.topics())
        assert f"{RESULTS}/clusterctl_model_predictions" not in late.topics()
        assert late.topics()[f"{RESULTS}/clusterctl_model_version"].startswith("0;")


def test_what_is_malformed_retained_or_of_another_time_is_counted_and_nothing_else(
    one: Broker, tmp_path: Path, no_agent: None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, settings = site(tmp_path, one)
    assert run(folder, settings) == 0
    now_s = time.time()
    topic = HEAD.topic("ended_job")
    good, ahead = jobs(1, now_s - 9 * HOUR_S)[0], jobs(1, now_s + 9 * HOUR_S)[0]
    nonsense = ["", ";", "x;1", "{};1", '{"job":1};1', "[" * 5000 + ";1", "x" * 70_000 + ";1", "\0;1"]
    soon = jobs(1, now_s - HOUR_S + 30.0)[0]  # of a head whose clock is half a minute ahead
    text = good.payload.rpartition(";")[0]
    backwards = text.replace('"submitted_s":', '"submitted_s":9').replace('"job":"', '"job":"y')
    nonsense += [text.replace('"nodes":2', '"nodes":0') + ";1", text.replace('"watts":', '"watts":-') + ";1"]
    published(one, [*(Message(topic, one) for one in nonsense), ahead, Message(topic, backwards + ";1"), good, soon])
    capsys.readouterr()
    assert run(folder, settings) == 0
    found = capsys.readouterr()
    assert found.out.startswith("2 jobs have ended since the last run")
    assert "of 14 jobs were left out: 10 malformed, 1 that end before their submission, 1 that end later" in found.err
    assert len(found.err.splitlines()) == 2
    # a client whose first run meets what others had the broker retain
    published(one, [Message(HEAD.topic("ended_job"), "nonsense", is_kept=True)])
    words = JobWords(tmp_path, is_made=True)
    ring = open_ring(tmp_path, 1000)
    try:
        taken = JobsOfTopic(ring, words)
        for protocol, count in (("5", 0), ("3.1.1", 1)):
            fetched = fetching.fetch(one.settings(protocol=protocol), f"new-{protocol}", topic, taken.keep)
            assert (fetched.messages, fetched.trouble) == (count, "")
        assert taken.in_words() == "1 retained by the broker" and taken.new == 0
    finally:
        ring.close()


def test_a_broker_that_replays_yesterday_adds_no_job_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of jobs that ended before the newest that the ring compares with."""
    monkeypatch.setattr("cluster_agent.model_service.mqtt_jobs.OVERLAP", 100)
    begin_s = time.time() - 400 * HOUR_S
    words = JobWords(tmp_path, is_made=True)
    ring = open_ring(tmp_path, 1000)
    try:
        made = [Received(one.payload.encode(), False) for one in jobs(300, begin_s)]
        first = JobsOfTopic(ring, words)
        for at in range(0, 300, 10):
            first.keep(made[at : at + 10])
        assert (first.new, ring.head, first.in_words()) == (300, 300, "")
        again = JobsOfTopic(ring, words)
        again.keep(made)
        assert (again.new, ring.head) == (0, 300)
        assert again.in_words() == "100 known already, 200 older than the last jobs of the ring"
    finally:
        ring.close()


def test_a_flood_is_fetched_up_to_a_limit_and_the_next_run_has_the_rest(
    one: Broker, tmp_path: Path, no_agent: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``benchmarks mqtt`` has a million messages."""
    folder, settings = site(tmp_path, one)
    assert run(folder, settings) == 0
    published(one, [Message(HEAD.topic("ended_job"), "flood") for _ in range(1500)] + jobs(5, time.time() - 9e5))
    monkeypatch.setattr(model_broker, "MOST", 1000)
    capsys.readouterr()
    said = ""

    def is_done() -> bool:
        nonlocal said
        assert run(folder, settings) == 0
        found = capsys.readouterr()
        said += found.out + found.err
        return sum(map(int, re.findall(r"(\d+) malformed", said))) >= 1500

    assert within(PATIENCE_S, is_done)
    is_done()  # the jobs may be the last that came
    again = sum(map(int, re.findall(r"(\d+) malformed", said))) - 1500
    assert 0 <= again <= 20, "QoS 1: what was not acknowledged when the first run left comes twice"
    assert sum(map(int, re.findall(r"(\d+) jobs have ended", said))) == 5
    assert "has more than 1" in said and "jobs: the next run fetches the rest" in said


def test_a_run_that_is_killed_while_it_fetches_loses_no_job(one: Broker, tmp_path: Path) -> None:
    def killed(received: object) -> None:
        raise KeyboardInterrupt

    topic = HEAD.topic("ended_job")
    assert fetching.fetch(one.settings(), "reader", topic, lambda received: None).trouble == ""
    published(one, jobs(20, 0.0))
    with pytest.raises(KeyboardInterrupt):
        fetching.fetch(one.settings(), "reader", topic, lambda received: killed(received) if received else None)
    kept: list[Received] = []
    fetching.fetch(one.settings(), "reader", topic, kept.extend)
    assert len({one.payload for one in kept}) == 20


def test_without_a_broker_a_run_is_done_and_says_so(
    one: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, settings = site(tmp_path, one)
    one.kill()
    monkeypatch.setattr(model_broker, "PATIENCE_S", 0.2)
    monkeypatch.setattr(model_service, "rows_since", lambda *given: [])
    monkeypatch.setattr(model_service, "rows_of", lambda *given: [])
    assert run(folder, settings) == 0
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("no broker at") and first.endswith("Connection refused; the next run fetches what is there")
    assert second.startswith("the results are not at the broker: no broker at")


def test_the_heads_jobs_are_published_once_and_only_where_users_may_be_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = [history_row(job) for job in ended(3, time.time() - 4 * HOUR_S)]
    rows.append(msgspec.structs.replace(rows[0], job="unmetered", watts=None))
    monkeypatch.setattr(metrics, "rows_since", lambda *given: rows)
    monkeypatch.setattr(metrics, "ENDED_WITHIN_S", 9 * HOUR_S)

    def nobody(place: object, request: object) -> object:
        raise ClusterError("nobody answers")

    monkeypatch.setattr(metrics, "ask", nobody)
    settings = MqttSettings("127.0.0.1:1", "site", "test")
    silent = metrics.BrokerFigures(settings, tmp_path)
    assert [one.topic.rpartition("/")[2] for one in silent()] == ["clusterctl_up"]
    telling = metrics.BrokerFigures(msgspec.structs.replace(settings, users=True), tmp_path)
    topics = [one.topic.rpartition("/")[2] for one in telling()]
    assert topics == ["clusterctl_up", *["ended_job"] * 3]
    telling._due_s = 0.0
    rows.append(msgspec.structs.replace(rows[1], job="another"))
    assert [one.topic.rpartition("/")[2] for one in telling()] == ["clusterctl_up", "ended_job"]
