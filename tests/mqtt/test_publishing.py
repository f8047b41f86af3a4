"""Figures go to a real broker in ExaMon's naming; whatever the broker does, the publisher is bounded and says so."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from foundation.mqtt.examon_topics import Message, Source, Value, messages, payload, read_payload
from foundation.mqtt.mqtt_settings import MqttSettings, read_mqtt_settings
from foundation.mqtt.publisher import Publisher, publish_once
from foundation.planted_links import replacing
from foundation.shell.settings import ConfigError
from lab.cluster_demo.emulated_partition import free_port
from nodectl.loop.metrics_page import WRITTEN
from tests.mosquitto import Broker, broker, certificates, environment, listening, program
from tests.waiting import PATIENCE_S, within

SOURCE = Source("site", "test", "nodectl_pub", "n01")
TOPIC = "org/site/cluster/test/node/n01/plugin/nodectl_pub/chnl/data/m"


def points(count: int, first: int = 0) -> Iterator[Message]:
    for at in range(first, first + count):
        yield Message(SOURCE.topic("m"), payload(at, 1.0))


def until(publisher: Publisher, holds: Callable[[], bool]) -> None:
    def turned() -> bool:
        publisher.turn(0.02)
        return holds()

    assert within(PATIENCE_S, turned), publisher.counts


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Broker]:
    with broker(tmp_path / "broker") as made:
        yield made


def test_a_topic_is_pairs_of_tags_and_a_name_and_what_is_reserved_is_written_as_in_a_url() -> None:
    """The first is the example of ExaMon's data model."""
    source = Source("testorg", "testcluster", "pmu_pub", "testnode00")
    expected = "org/testorg/cluster/testcluster/node/testnode00/plugin/pmu_pub/chnl/data/core/23/aperf"
    assert source.topic("aperf", {"core": "23"}) == expected
    assert payload(10822010350093, 1658832078.001) == "10822010350093;1658832078.001"
    odd = Source("a/b", "c#", "p", "n+ 1").topic("x%", {"gpu": "", "user": "ä\n"})
    assert odd == "org/a%2Fb/cluster/c%23/node/n%2B%201/plugin/p/chnl/data/user/ä%0A/x%25"
    assert Source("o", "c", "p").topic("m", {"node": "n2", "k": "v"}).startswith("org/o/cluster/c/node/n2/plugin/p/")
    assert payload(0.1, 1.0) == "0.1;1.000" and payload(-3.0, 1.0) == "-3;1.000" and payload(1e300, 1.0)[:5] == "1e+30"


@pytest.mark.parametrize("content", [b"", b";", b"1", b"1;x", b"1;nan", b"1;inf", b"\xff\xfe", b"1;"])
def test_a_payload_that_is_none_is_none(content: bytes) -> None:
    assert read_payload(content) is None
    assert read_payload(b"a;b;2.5") == Value("a;b", 2.5)


def test_figures_are_those_of_prometheus_without_users_and_without_values_that_are_no_numbers() -> None:
    gauge = GaugeMetricFamily("clusterctl_node_power_watts", "x", labels=["node"])
    gauge.add_metric(["n7"], 300.5)
    gauge.add_metric(["n8"], float("nan"))
    joules = CounterMetricFamily("clusterctl_user_energy_joules", "x", labels=["user"])
    joules.add_metric(["ada"], 5.0)
    source = Source("o", "c", "clusterctl_pub")
    (found,) = messages([gauge, joules], source, with_users=False)
    assert found.topic == "org/o/cluster/c/node/n7/plugin/clusterctl_pub/chnl/data/clusterctl_node_power_watts"
    assert found.payload.startswith("300.5;") and not found.is_kept
    both = [one.topic.rpartition("data/")[2] for one in messages([gauge, joules], source, with_users=True)]
    assert both == ["clusterctl_node_power_watts", "user/ada/clusterctl_user_energy_joules_total"]


def test_what_is_offered_is_at_the_broker_in_order_and_a_restart_of_the_broker_loses_nothing_that_fits(
    one: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    publisher = Publisher(one.settings(queue=1000), "test")
    with listening(one) as first:
        publisher.offer(points(300))
        until(publisher, lambda: publisher.counts[0] == 300 and len(first.messages) == 300)
        assert [int(message.payload.split(b";")[0]) for message in first.messages] == list(range(300))
        assert {message.topic for message in first.messages} == {TOPIC}
        one.kill()
    publisher.offer(points(400, 300))
    until(publisher, lambda: re.search("is lost|no broker", capsys.readouterr().err) is not None)
    one.start()
    with listening(one) as second:
        publisher._link._due_s = 0.0
        until(publisher, lambda: publisher.counts[0] == 700)
        assert within(PATIENCE_S, lambda: len(second.messages) > 0)
    assert publisher.counts == (700, 0, 0)
    publisher.close()


def test_a_queue_that_is_full_drops_the_oldest_and_says_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    publisher = Publisher(MqttSettings(f"127.0.0.1:{free_port()}", "site", "test", queue=100), "test")
    publisher.offer(points(100_000))
    assert publisher.dropped == 99_900 and len(publisher._queue) == 100
    assert publisher._queue[0].payload == "99900;1.000"
    for _ in range(3):
        publisher.turn(0.01)
    publisher.close()
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("no broker at 127.0.0.1:") and said[0].endswith(": Connection refused")
    assert said[1:] == ["99900 points in all were dropped: the queue is full ([mqtt] queue)",
                        "100 points were not taken by the broker before the end"]  # fmt: skip


def test_a_broker_that_accepts_and_says_nothing_costs_a_turn_no_more_than_its_limit() -> None:
    """Such as one that is stopped, or behind a firewall."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        publisher = Publisher(MqttSettings(f"127.0.0.1:{mute.getsockname()[1]}", "site", "test"), "test")
        publisher.offer(points(10))
        begin_s, begin_cpu_s = time.monotonic(), time.process_time()
        for _ in range(10):
            publisher.turn(0.05)
        assert time.process_time() - begin_cpu_s < 0.25 < time.monotonic() - begin_s
        assert publisher.counts == (0, 0, 0)
        publisher.close()


RIGHTS = """user reader
topic read #
user node
topic write org/site/cluster/test/node/n01/#
"""


def with_rights(folder: Path) -> tuple[str, ...]:
    """Settings of a broker with two users."""
    folder.mkdir(exist_ok=True)
    (folder / "acl").write_text(RIGHTS)
    (folder / "passwords").write_text("reader:secret\nnode:secret\n")
    (folder / "node.password").write_text("secret\n")
    for name in ("acl", "passwords", "node.password"):
        (folder / name).chmod(0o600)
    made = [program("mosquitto_passwd"), "-U", folder / "passwords"]
    subprocess.run(made, check=True, capture_output=True, timeout=PATIENCE_S, env=environment())
    return "allow_anonymous false", f"acl_file {folder / 'acl'}", f"password_file {folder / 'passwords'}"


def test_a_client_without_rights_is_refused_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker(tmp_path / "broker", *with_rights(tmp_path / "broker")) as one:
        login = {"user": "node", "password_file": str(tmp_path / "broker" / "node.password")}
        publisher = Publisher(one.settings(**login), "test")
        elsewhere = Source("site", "test", "nodectl_pub", "n02")
        publisher.offer([Message(elsewhere.topic("m"), "1;1")])
        until(publisher, lambda: publisher.counts[2] == 1)
        refused = f"refused by the broker at 127.0.0.1:{one.port}: not authorized"
        said = capsys.readouterr().err
        assert f"1 points in all were {refused}\n" in said
        with listening(one, user="reader", password="secret") as listener:
            publisher.offer(points(1))
            until(publisher, lambda: publisher.counts[0] == 1 and len(listener.messages) == 1)
            assert listener.messages[0].topic == TOPIC
        once = publish_once(one.settings(**login), "once", [Message(elsewhere.topic("m"), "1;1")], PATIENCE_S)
        assert once == f"1 messages were {refused}"
        publisher.close()
        stranger = Publisher(one.settings(), "stranger")
        stranger.offer(points(1))
        capsys.readouterr()
        until(stranger, lambda: "refuses: not authorized" in capsys.readouterr().err)
        stranger.close()


def test_tls_takes_the_right_brokers_and_the_right_clients_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "keys"
    certificates(keys)
    lines = (f"cafile {keys / 'ca.pem'}", f"certfile {keys / 'server.pem'}", f"keyfile {keys / 'server.key'}",
             "require_certificate true", "use_identity_as_username true", "allow_anonymous false")  # fmt: skip
    certificates(tmp_path / "others")
    with broker(tmp_path / "broker", *lines) as one:
        mine = {"certificate": str(keys / "client.pem"), "key": str(keys / "client.key")}
        right = one.settings(ca=str(keys / "ca.pem"), **mine)
        assert publish_once(right, "right", list(points(3)), PATIENCE_S) == ""
        wrong = one.settings(ca=str(tmp_path / "others" / "ca.pem"), **mine)
        assert "its certificate is not trusted" in publish_once(wrong, "wrong", list(points(1)), 2.0)
        assert publish_once(one.settings(ca=str(keys / "ca.pem")), "none", list(points(1)), 2.0) != ""
        with pytest.raises(ConfigError, match=r"client.key: no certificate and its key for \[mqtt\]"):
            Publisher(one.settings(ca=str(keys / "ca.pem"), certificate=mine["key"], key=mine["key"]), "x")
        with pytest.raises(ConfigError, match=r"none.pem: no certificates for \[mqtt\] ca: No such file"):
            Publisher(one.settings(ca="none.pem"), "x")


WRONG = {
    'broker = "here"': "mqtt.broker: 'here' is not HOST:PORT",
    'broker = "b:1"\norg = "o"': "mqtt.cluster: is missing: each topic begins with",
    'broker = "b:1"\norg = "o"\ncluster = "c"\nuser = "u"\npassword_file = "p"': "mqtt.user: needs ca: without TLS",
    'broker = "b:1"\norg = "o"\ncluster = "c"\nuser = "u"': "mqtt.user: needs password_file, too",
    'broker = "b:1"\norg = "o"\ncluster = "c"\nkey = "k"': "mqtt.key: needs certificate, too",
    'broker = "b:1"\norg = "o"\ncluster = "c"\nperiod_s = 0.1': "period_s: 0.1 s is outside 1..3600",
    "brokr = 1": "unknown key 'brokr' (nearest: broker)",
    "": "set [mqtt] broker = ",
}


@pytest.mark.parametrize("text", WRONG)
def test_settings_that_are_wrong_are_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(f"[mqtt]\n{text}\n")
    with pytest.raises(ConfigError) as raised:
        read_mqtt_settings(path)
    assert WRONG[text] in str(raised.value) and "\n" not in str(raised.value)


def test_a_password_that_others_may_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "password"
    path.write_text("secret\n")
    path.chmod(0o644)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    settings = MqttSettings("localhost:1", "o", "c", user="u", password_file="password")
    with pytest.raises(ConfigError, match="others may read the password: chmod o= it"):
        settings.password()
    path.chmod(0o640)
    assert settings.password() == "secret"


def written(page: Path) -> None:
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    with replacing(page, 0o644) as file:
        file.write(f"# TYPE nodectl_cap_watts gauge\nnodectl_cap_watts 321.0\n{WRITTEN}{now_s}\n".encode())


def test_the_command_publishes_the_agents_page_and_ends_by_a_signal(one: Broker, tmp_path: Path) -> None:
    settings = tmp_path / "nodectl.toml"
    settings.write_text(
        f'[cluster]\nname = "n01"\n[mqtt]\nbroker = "127.0.0.1:{one.port}"\norg = "site"\n'
        'cluster = "test"\nperiod_s = 1.0\n'
    )
    page = tmp_path / "page.prom"
    # the page is of a node here: whoever reads it finds it where this says
    code = (
        "import sys\nfrom nodectl.commands import metrics\n"
        f"metrics.metrics_path = lambda lock: {str(page)!r}\n"
        "from nodectl.cli import main\nsys.exit(main(sys.argv[1:]))"
    )
    with listening(one) as listener:
        process = subprocess.Popen(
            [sys.executable, "-c", code, "mqtt", "--config", str(settings)], stderr=subprocess.PIPE, text=True
        )
        try:
            head = "org/site/cluster/test/node/n01/plugin/nodectl_pub/chnl/data"
            assert within(PATIENCE_S, lambda: listener.topics().get(f"{head}/nodectl_up", "").startswith("0;"))

            def is_there() -> bool:
                written(page)
                return listener.topics().get(f"{head}/nodectl_cap_watts", "").startswith("321;")

            assert within(PATIENCE_S, is_there)
            assert f"{head}/nodectl_mqtt_dropped_points_total" in listener.topics()
        finally:
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=PATIENCE_S)[1]
        assert process.returncode == 0 and said.splitlines()[0] == f"figures go to the broker at 127.0.0.1:{one.port}"


def test_who_publishes_nothing_needs_no_client_of_mqtt() -> None:
    commands = (
        "cluster_agent.commands.metrics",
        "cluster_agent.commands.learning.model_service",
        "nodectl.commands.metrics",
    )
    code = f"import sys; sys.modules['paho'] = None; import {', '.join(commands)}"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == ""
