"""A budget by feed: what is taken, what is refused, and that nothing is lost by either."""

import os
import random
from pathlib import Path

import pytest

from cluster_agent.cli import main
from cluster_agent.serve.config import BudgetSettings, NodeSettings, Settings
from cluster_agent.serve.live_budget.budget_feed import MOST_BYTES, Fed, Feed
from cluster_agent.serve.server import Server
from lab.cluster_demo.emulated_partition import free_port

WALL_S = 1_000_000.0


def replace(path: Path, text: str | bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(text.encode() if isinstance(text, str) else text)
    os.rename(new, path)


class Watched:
    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path / "feed"
        self.feed = Feed(self.path, 60.0, 300_000)

    def says(self, text: str | bytes, now_s: float = 0.0) -> Fed | None:
        replace(self.path, text)
        return self.look(now_s)

    def look(self, now_s: float) -> Fed | None:
        return self.feed.look(now_s, lambda: WALL_S)


def test_a_feed_is_one_line_of_watts_or_lines_of_time_and_watts(tmp_path):
    made = Watched(tmp_path)
    assert made.says("1400\n") == Fed(1_400_000, [])
    assert made.look(1.0) is None, "it said so already"
    assert made.says("# plan\n999000,900\n1000000,800.5\n1000060,700\n") == Fed(800_500, [(1_000_060.0, 700_000)])
    assert made.says("1000060,700\n") == Fed(None, [(1_000_060.0, 700_000)])
    assert made.feed.alarm == ""


@pytest.mark.parametrize(
    "text",
    ["", "much", "1400\n1500", "999000,1000\n999001,much", "999000,1000\n998000,1000", "-5", "nan", "300", "0",
     b"\xff\xfe", "1" * (MOST_BYTES + 1)],
)  # fmt: skip
def test_a_feed_with_a_line_of_nonsense_is_refused_as_a_whole_and_alarmed(tmp_path, text):
    made = Watched(tmp_path)
    assert made.says("1400") is not None
    assert made.says(text) is None
    assert "feed" in made.feed.alarm
    assert made.feed.alarm.endswith("; the budget stays as it is")
    assert "\n" not in made.feed.alarm
    made.look(1.0)
    assert made.feed.alarm, "until it is mended"
    assert made.says("1300") == Fed(1_300_000, [])
    assert made.feed.alarm == ""


def test_random_bytes_never_stop_the_cluster_agent(tmp_path):
    made, dice = Watched(tmp_path), random.Random(1)
    for _ in range(300):
        fed = made.says(bytes(dice.choices(b"0123456789.,-eEnaif+:TZ \n\x00\xff", k=dice.randrange(30))))
        assert fed is None or made.feed.alarm == ""
    assert made.says("1300") == Fed(1_300_000, [])


def test_a_feed_that_is_not_replaced_is_stale_and_saying_the_same_again_is_fresh(tmp_path):
    made = Watched(tmp_path)
    made.look(0.0)
    assert "cannot read the feed" in made.feed.alarm
    made.says("1400", 10.0)
    made.look(70.0)
    assert made.feed.alarm == ""
    made.look(70.1)
    assert "has not been replaced for 60 s" in made.feed.alarm
    assert made.says("1400", 71.0) == Fed(1_400_000, [])
    assert made.feed.alarm == ""
    made.path.unlink()
    made.look(72.0)
    assert "cannot read the feed" in made.feed.alarm


def test_a_pipe_is_refused_and_waits_for_nobody(tmp_path):
    made = Watched(tmp_path)
    os.mkfifo(made.path)
    assert made.look(0.0) is None
    assert "is not a file of at most" in made.feed.alarm


def test_the_cluster_agent_follows_its_feed_and_records_it(tmp_path):
    said: list[str] = []
    path = tmp_path / "feed"
    settings = Settings(
        listen=f"tcp://127.0.0.1:{free_port()}", insecure=True, keys=str(tmp_path), store=str(tmp_path / "a.db"),
        socket=str(tmp_path / "s"), mode="cap", budget=BudgetSettings(w=1000.0, fixed_w=100.0, feed=str(path)),
        nodes=NodeSettings(tdp_w=500.0),
    )  # fmt: skip
    server = Server(settings, said.append, wall_s=lambda: WALL_S)
    try:
        replace(path, "999000,900\n1000060,700\n")
        server.step(0.01)
        line = server.partition.ledger.budget
        assert (line.budget_mw, [mw for _, mw in line.steps]) == (900_000, [700_000])
        replace(path, "nonsense\n")
        server.step(0.01)
        assert line.budget_mw == 900_000
        assert any(
            "nonsense" in alarm or "not TIME,WATTS" in alarm for alarm in server.partition.budget_view(0.0).alarms
        )
        replace(path, "850\n")
        server.step(0.01)
        replace(path, "850\n")
        server.step(0.01)
        assert (line.budget_mw, line.steps) == (850_000, [])
        assert server.partition.budget_view(0.0).alarms == []
        assert [(one.who, one.what) for one in server._live_budget._budgets.changes()] == [
            ("feed", "850 W"), ("feed", "900 W, 1 steps to come"),
        ]  # fmt: skip
    finally:
        server.close()


def test_a_schedule_and_a_feed_together_are_refused_in_one_line(tmp_path, capsys):
    config = tmp_path / "c.toml"
    config.write_text('[budget]\nw = 1000.0\nfeed = "f"\nschedule = "s"\n[nodes]\ntdp_w = 500.0\n')
    assert main(["serve", "--config", str(config)]) == 2
    assert "budget.feed: is set together with a schedule" in capsys.readouterr().err
