"""Sharers of a site, and job policies of one, in a live partition: whatever they do, the budget is kept."""

from pathlib import Path

import numpy as np
import pytest

from cluster_agent.budget.sharers import registry
from cluster_agent.budget.sharers.view import Job
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.serve.config import read_settings
from cluster_agent.serve.live_sharing import Sharing
from foundation.shell.extension import ExtensionFailedError
from foundation.shell.settings import ConfigError
from nodectl.member.lease import NodeLease
from tests.fabric.links import DECLARED
from tests.fabric.test_serve import partition, told
from tests.live.fakes import Fake

SHARER = """
import os
import msgspec
import numpy as np
from cluster_agent.budget.sharers import aapc
from cluster_agent.budget.sharers.api import Method

class Params(msgspec.Struct, frozen=True):
    flag: str = ""

def compose(params):
    shared = aapc.METHOD.compose(aapc.METHOD.params())
    def share(view, available_mw):
        caps = shared(view, available_mw)
        if os.path.exists(params.flag):
            FAILURE
        return caps
    return share

METHOD = Method("site", "a sharer", "ours", Params, compose)
"""
FAILS_AT = 16


def write(folder: Path, failure: str) -> str:
    path = folder / "mine.py"
    path.write_text(SHARER.replace("FAILURE", failure))
    path.chmod(0o644)
    return f"{path}:flag={folder}/fails"


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        ("caps = 1 / 0", f":{FAILS_AT}: ZeroDivisionError: division by zero"),
        ("raise SystemExit", f":{FAILS_AT}: SystemExit"),
        ("caps = None", ":13: the sharer did not return Shares"),
        ("caps.caps_mw[:] += 1", ":13: the caps add up to 0.002 W more than there is"),
        ("caps.caps_mw[0] = 0", ":13: the cap of n0, 0 W, is not within its MOP and TDP"),
        ("caps.owner[0] = 7", ":13: owner has a number that is no job"),
        ("caps.reason[0] = 99", ":13: reason has a number that is no Reason"),
        ("caps.tag[0] = 9", ":13: tag has a number that is no Tag"),
        ("object.__setattr__(caps, 'caps_mw', caps.caps_mw[1:])", ":13: caps_mw is no array of 2 whole numbers"),
        ("object.__setattr__(caps, 'speed', 1.0)", ":13: speed is no array of 1 numbers"),
    ],
)
def test_a_sharer_that_fails_is_an_alarm_and_the_budget_is_shared_all_the_same(tmp_path, failure, said):
    lines: list[str] = []
    sharing = Sharing(write(tmp_path, failure), lambda: [Job("j0", ["n1"])])
    made, database = partition(tmp_path, lines, sharing, gap_s=0.1)
    leases = [NodeLease(f"n{n}", "boot-1", DECLARED, 200_000, 0) for n in range(2)]
    made.ledger.budget.set(500_000)
    for now_s in (1.0, 2.0, 3.0):
        told(made, now_s, *leases)
    by_site = dict(made.plan.caps_mw)
    assert "sharer" not in made.alarms

    (tmp_path / "fails").touch()
    made.replan(4.0)
    alarm = f"ALARM: the sharer {sharing.name} failed, and fspc shares the watts: {tmp_path}/mine.py{said}"
    assert len([line for line in lines if line.startswith(alarm)]) == 1
    assert any("fspc shares the watts" in line for line in made.budget_view(4.0).alarms)
    fair = Sharing("fspc").share(made.ledger, np.array([0, 1]), made.plan.available_mw)
    assert list(made.plan.caps_mw.values()) == fair.tolist() != list(by_site.values())
    assert any(f"{sharing.name} failed" in line for line in made.why(4.0, "n0").lines)

    (tmp_path / "fails").unlink()
    made.replan(5.0)
    assert dict(made.plan.caps_mw) == by_site
    assert len([line for line in lines if line.startswith("the alarm is over: the sharer ")]) == 1
    database.close()


def test_the_settings_take_files_relative_to_themselves_and_name_the_line_of_a_wrong_one(tmp_path):
    write(tmp_path, "pass")
    settings = tmp_path / "cluster.toml"
    text = "sharer = 'mine.py:flag=x'\n[budget]\nw = 900.0\n[nodes]\ntdp_w = 400.0\n[jobs]\npolicy = 'order.py'\n"
    settings.write_text(text)
    for there in (False, True):
        if there:
            write_order(tmp_path, "...")
            found = read_settings(settings)
            assert (found.sharer, found.jobs.policy) == (f"{tmp_path}/mine.py:flag=x", f"{tmp_path}/order.py")
            continue
        with pytest.raises(ConfigError) as caught:
            read_settings(settings)
        assert str(caught.value) == (
            f"{settings}:7: jobs.policy: {tmp_path}/order.py: cannot read it: No such file or directory"
        )
    settings.write_text(text.replace("flag=x", "flg=x"))
    with pytest.raises(ConfigError, match=r"cluster.toml:1: sharer: .*site has no parameter 'flg' \(nearest: flag\)"):
        read_settings(settings)
    settings.write_text(text.replace("mine.py:flag=x", "mine.py:compose"))
    with pytest.raises(ConfigError, match=r"cluster.toml:1: .*/mine.py:11: compose is no cluster_agent.budget.sharers"):
        read_settings(settings)


def test_a_sharer_that_cannot_be_called_is_refused_before_it_is_at_work(tmp_path):
    path = Path(write(tmp_path, "pass").partition(":")[0])
    path.write_text(path.read_text().replace("share(view, available_mw)", "share(view)"))
    with pytest.raises(
        ExtensionFailedError, match=r"mine.py:11: what it returned cannot be called with \(view, available_mw\)"
    ):
        registry.choose(str(path))


def write_order(folder: Path, body: str) -> str:
    path = folder / "order.py"
    path.write_text(
        "import os\nimport numpy as np\nfrom cluster_agent.scheduler.policies.api import EstimateParams, Policy\n"
        "from cluster_agent.scheduler.policy_phases import Composition\n"
        "class Params(EstimateParams, frozen=True):\n    flag: str = ''\n"
        "def compose(params):\n    def order(queue, now_s):\n"
        f"        if os.path.exists(params.flag):\n            {body}\n"
        "        return np.argsort(-queue.width, kind='stable')\n"
        "    return Composition(order=order, backfill='none')\n"
        "POLICY = Policy('widest', 'a policy', 'ours', Params, compose)\n"
    )
    path.chmod(0o644)
    return f"{path}:flag={folder}/fails"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("1 / 0", "order.py:10: ZeroDivisionError"),
        ("return queue.width[1:]", "the policy's order must return each of the positions 0 to"),
    ],
)
def test_an_order_that_fails_leaves_the_queue_as_it_is_and_jobs_go_on_to_start(tmp_path, body, said):
    text = write_order(tmp_path, body)
    (tmp_path / "fails").touch()
    fake = Fake(2, choose(text).composition)
    fake.settle()
    narrow, wide = fake.submit(10, 1), fake.submit(10, 2)
    fake.settle()
    assert narrow.state != "queued" and wide.state == "queued"
    assert [line for line in fake.said if "ALARM: the policy does not order the queue" in line and said in line]
    (tmp_path / "fails").unlink()
    later = fake.submit(10, 1), fake.submit(10, 1)  # an order is called where two wait
    for _ in range(60):
        fake.step()
    assert [job.state for job in (wide, *later)] == ["done"] * 3
    assert "the alarm is over: the policy orders the queue again" in fake.said
