"""People with keys: `clusterctl` on another machine than the cluster agent's."""

import time

import pytest
import zmq

from cluster_agent.fabric.ask import Link, ask
from cluster_agent.fabric.people import pack_request
from cluster_agent.serve.people_protocol import ListNodes, SetBudget
from foundation.shell.errors import NodectlError
from foundation.wire.keys import read_pair
from foundation.wire.power_messages import pack
from tests.fabric.cluster import Cluster, Done


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """One node; keys of an administrator, a viewer and somebody who is not on the list."""
    with Cluster(tmp_path_factory.mktemp("afar"), 1000.0, jobs={}) as made:
        made.serve()
        made.node("n0", cap_w=150.0)
        made.run("keys", "new", "alice", "--role", "admin", "--dir", str(made.keys))
        made.run("keys", "new", "bob", "--role", "viewer", "--dir", str(made.keys))
        made.run("keys", "new", "eve", "--dir", str(made.keys))
        made.until(lambda: sum(row["jobs"] == "idle" for row in made.ask("nodes") or []) == 1)
        yield made


class As:
    """`clusterctl` as the owner of a key, over the link."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self._cluster, self._set = cluster, monkeypatch.setenv

    def __call__(self, name: str, *arguments: str, server: str = "cluster") -> Done:
        keys = self._cluster.keys
        self._set("CLUSTERCTL_KEY", str(keys / f"{name}.key"))
        self._set("CLUSTERCTL_SERVER", str(keys / f"{server}.key"))
        socket, self._cluster.socket = self._cluster.socket, self._cluster.url
        try:
            return self._cluster.ctl(*arguments)
        finally:
            self._cluster.socket = socket


@pytest.fixture
def run_as(cluster, monkeypatch):
    return As(cluster, monkeypatch)


def test_a_viewers_key_looks_and_changes_nothing(run_as):
    assert run_as("bob", "nodes").stdout.splitlines()[-1].startswith("n0 ")
    assert "n0" in run_as("bob", "why", "n0").stdout
    for words in (["budget", "set", "900"], ["drain", "n0"]):
        done = run_as("bob", *words)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "key bob may look, but not change anything" in done.stderr


def test_an_admins_key_changes_what_administrators_may_and_is_named_for_it(cluster, run_as):
    assert run_as("alice", "budget", "set", "950").returncode == 0
    assert "key alice" in run_as("bob", "budget", "log").stdout
    assert cluster.ask("budget", "show")["budget_w"] == 950.0
    assert run_as("alice", "budget", "set", "1000").returncode == 0


def test_a_key_owns_no_jobs_but_an_admins_may_end_them(cluster, run_as):
    done = run_as("alice", "submit", "--", "true")
    assert "key alice is no user here" in done.stderr and done.returncode == 2
    done = cluster.ctl("submit", "-D", str(cluster.at), "--", "sleep", "600")
    job = done.stdout.split()[1]
    assert "only its owner and administrators" in run_as("bob", "cancel", job).stderr
    assert run_as("alice", "cancel", job).returncode == 0


def test_keys_that_do_not_fit_are_refused_at_once(run_as):
    began_s = time.monotonic()
    done = run_as("eve", "nodes")
    assert "our key is not on its list" in done.stderr and done.returncode == 1
    done = run_as("bob", "nodes", server="eve")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    done = run_as("nobody", "nodes")
    assert "nobody.key: cannot read the key" in done.stderr
    assert time.monotonic() - began_s < 60.0


def test_who_is_not_there_is_said_within_the_patience_of_a_person(run_as, cluster, monkeypatch):
    monkeypatch.setattr(cluster, "url", "tcp://127.0.0.1:1")
    done = run_as("bob", "nodes")
    assert "no answer from a cluster agent: connection refused" in done.stderr
    monkeypatch.setattr(cluster, "url", "tcp://")
    assert run_as("bob", "nodes").returncode == 1


def test_a_nodes_key_asks_nothing(cluster):
    pair = read_pair(cluster.keys / "n0.key")
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.curve_publickey, dealer.curve_secretkey = pair.public.encode(), pair.secret.encode()
        dealer.curve_serverkey = read_pair(cluster.keys / "cluster.key").public.encode()
        dealer.connect(cluster.url)
        dealer.send(pack("ask", pack_request(ListNodes())))
        cluster.until(lambda: "n0: dropped: kind 'ask' is not known here" in cluster.said())
        assert not dealer.poll(200)


def test_an_admin_whose_key_is_revoked_changes_nothing_any_more(cluster):
    cluster.run("keys", "new", "carol", "--role", "admin", "--dir", str(cluster.keys))
    carol = Link(cluster.url, cluster.keys / "carol.key", str(cluster.keys / "cluster.key"))
    assert ask(carol, ListNodes())
    cluster.run("keys", "revoke", "carol", "--dir", str(cluster.keys))
    with pytest.raises(NodectlError, match="not on its list"):
        ask(carol, SetBudget(1.0))
