"""A model's score of what a job's nodes count becomes its tag, after its user's and before the nodes' own rule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.learned_tags import FURTHEST, Run, doubt, interval, judged, model_text
from cluster_agent.budget.scored_tags import EVERY_NS, MARKS, MOST_NODES, ScoredTags, row_of
from cluster_agent.budget.sharers.view import Tag
from cluster_agent.jobs.job import Job, JobSpec
from cluster_agent.jobs.job_tags import JobTags
from cluster_agent.prediction.models import MOST_FAILURES, PATIENCE_S, find_model
from cluster_agent.serve.config import read_settings
from foundation.shell.settings import ConfigError
from foundation.wire.power_messages import Report
from nodectl.decide.load_tag import BETA
from tests.fabric.links import report

SCORES = """
from cluster_agent.prediction.models import Model, NothingToSayError

class Scores:
    def learn(self, ended): pass
    def predict(self, submissions): raise NothingToSayError
    def score(self, window):
        return SCORE

MODEL = Model("scores", "one number", Scores)
"""
BY_IPC = "sum(row['ipc'] for row in window) / len(window) / 4"


def scored(folder: Path, score: str, said: list[str], clock_s: Callable[[], float] = lambda: 0.0) -> ScoredTags:
    path = folder / "scores.py"
    path.write_text(SCORES.replace("SCORE", score))
    path.chmod(0o600)
    return ScoredTags(find_model(str(path)), said.append, clock_s)


def counted(second: int, ipc: float, node: str = "n1", **more: object) -> Report:
    given: dict[str, object] = {
        "report_id": second * 1_000_000_000, "cycles": second * 10**9, "instructions": round(second * ipc * 1e9),
        "energy_mj": second * 100_000,
    }  # fmt: skip
    return report(node, **{**given, **more})


def run(tags: ScoredTags, ipc: float, job: str = "7", node: str = "n1", seconds: int = 40) -> None:
    for second in range(seconds):
        tags.hear(counted(second, ipc, node), job)


@pytest.mark.parametrize(("ipc", "tag"), ((0.4, Tag.MEMORY), (2.0, Tag.MIXED), (3.6, Tag.COMPUTE)))
def test_a_score_is_the_share_of_time_that_a_lower_clock_makes_longer(tmp_path: Path, ipc: float, tag: Tag) -> None:
    said: list[str] = []
    tags = scored(tmp_path, BY_IPC, said)
    run(tags, ipc)
    assert tags.tag("7", ["n1", "unknown"]) == tag
    assert tags.tag("8", ["n1"]) is None, "these are another job's counts"
    assert (tags.trouble, said) == ("", [])


def test_the_marks_are_those_of_the_nodes_own_rule() -> None:
    assert MARKS == BETA


def test_a_new_job_on_a_node_begins_without_a_tag_and_has_one_after_some_seconds(tmp_path: Path) -> None:
    tags = scored(tmp_path, BY_IPC, [])
    run(tags, 0.4)
    assert tags.tag("7", ["n1"]) == Tag.MEMORY
    tags.ended("7")
    run(tags, 3.6, job="8", seconds=10)
    assert tags.tag("8", ["n1"]) is None
    run(tags, 3.6, job="8")
    assert tags.tag("8", ["n1"]) == Tag.COMPUTE


def test_the_users_word_comes_first_then_the_model_then_the_nodes_rule(tmp_path: Path) -> None:
    tags = scored(tmp_path, BY_IPC, [])
    run(tags, 0.4)
    job = Job(id=7, uid=1, user="ada", spec=JobSpec(["a"], 60, "/"), submitted_s=0, queued_s=0)
    assert JobTags((), tags).give(job, ["compute"], ["n1"]) == Tag.MEMORY
    assert job.tag_source == "model"
    unknown = Job(id=8, uid=1, user="ada", spec=JobSpec(["a"], 60, "/"), submitted_s=0, queued_s=0)
    assert JobTags((), tags).give(unknown, ["compute"], ["n2"]) == Tag.COMPUTE
    assert unknown.tag_source == "node agent"
    declared = Job(id=7, uid=1, user="ada", spec=JobSpec(["a"], 60, "/", tag="mixed"), submitted_s=0, queued_s=0)
    assert JobTags((), tags).give(declared, ["compute"], ["n1"]) == Tag.MIXED
    assert declared.tag_source == "user"


@pytest.mark.parametrize(
    ("score", "why"),
    (("float('nan')", "score is nan"), ("1.2", "score is 1.2"), ("'1'", "score is '1'"), ("1 / 0", "ZeroDivision")),
)
def test_a_model_that_fails_leaves_the_tag_to_the_nodes_rule_and_is_an_alarm(
    tmp_path: Path, score: str, why: str
) -> None:
    said: list[str] = []
    tags = scored(tmp_path, score, said)
    for number in range(MOST_FAILURES + 2):
        run(tags, 1.0, job=str(number))
        assert tags.tag(str(number), ["n1"]) is None
    assert why in tags.trouble and len(said) == 1 and said[0].endswith("its nodes' own rule gives the tag instead")


def test_where_a_model_says_nothing_the_nodes_rule_gives_the_tag_and_that_is_no_alarm(tmp_path: Path) -> None:
    said: list[str] = []
    tags = scored(tmp_path, "(_ for _ in ()).throw(NothingToSayError)", said)
    for number in range(MOST_FAILURES + 2):
        run(tags, 1.0, job=str(number))
        job = Job(id=number, uid=1, user="ada", spec=JobSpec(["a"], 60, "/"), submitted_s=0, queued_s=0)
        assert JobTags((), tags).give(job, ["compute"], ["n1"]) == Tag.COMPUTE
        assert job.tag_source == "node agent"
    assert (tags.trouble, said) == ("", [])


SILENT = 0.05, 0.1
QUARTER_IPC = np.array([0.25 if at in (4, 8) else 0.0 for at in range(14)])
"""Of what ``learned_tags`` learns: a quarter of the instructions a cycle, with stalled cycles and without."""


@pytest.mark.parametrize(
    ("ipc", "has_stalls", "tag"),
    (
        (0.9, True, Tag.MEMORY), (0.9, False, None), (1.12, True, None), (1.28, True, None), (1.5, True, Tag.MIXED),
        (1.5, False, None), (1.9, False, Tag.MIXED), (2.5, True, None), (2.9, True, Tag.COMPUTE),
        (3.2, False, Tag.COMPUTE),
    ),
)  # fmt: skip
def test_the_trained_model_says_nothing_near_a_mark(
    tmp_path: Path, ipc: float, has_stalls: bool, tag: Tag | None
) -> None:
    path, said = tmp_path / "tags.py", list[str]()
    path.write_text(model_text(QUARTER_IPC, SILENT))
    path.chmod(0o600)
    tags = ScoredTags(find_model(str(path)), said.append, lambda: 0.0)
    for second in range(40):
        stalled = second * 10**8 if has_stalls else -1
        tags.hear(counted(second, ipc, llc_misses=second * 1000, stalled_cycles=stalled), "7")
    assert tags.tag("7", ["n1"]) == tag and said == []


FLOW = {"bytes_per_s": 0.0, "cycles_per_s": 1e9}


def test_how_near_a_mark_is_too_near_is_the_least_that_leaves_few_wrong_tags() -> None:
    right, wrong = [(0.2, 0.1)] * 200, [(0.2825, 0.4)] * 10  # 0.1 and 0.0175 from a mark
    assert doubt(right + wrong) == 0.02
    assert doubt(right) == 0.0 and doubt([*right, *wrong[:3]]) == 0.0
    assert doubt([(0.1, 0.9)] * 5) == doubt(right[:20]) == FURTHEST, "twenty show too little"
    near, far = (
        Run("curie", f"mixed-cpu:{at}", True, 0.4, "memory", [{"ipc": ipc, "stalled": 0.0, **FLOW}])
        for at, ipc in ((1, 1.12), (2, 1.6))
    )
    found = judged(QUARTER_IPC, SILENT, "curie", "two", True, [near, far])
    assert (found.learned, found.answered, found.sure, found.rule, found.live) == (0.5, 0.5, 1.0, 0.0, 0.5)
    assert interval(50, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)


def test_a_model_that_is_late_is_an_alarm(tmp_path: Path) -> None:
    times, said = iter(range(100)), list[str]()
    tags = scored(tmp_path, BY_IPC, said, lambda: next(times) * 2 * PATIENCE_S)
    run(tags, 1.0)
    assert tags.tag("7", ["n1"]) is None and "for one score" in said[0]


def test_scores_take_a_twentieth_of_the_time_and_counts_that_begin_again_are_scored_again(tmp_path: Path) -> None:
    now_s = [0.0]

    def clock_s() -> float:
        now_s[0] += 0.01  # each look at the clock, so a score takes a hundredth of a second at least
        return now_s[0]

    tags = scored(tmp_path, BY_IPC, [], clock_s)
    for number in range(20):
        run(tags, 0.4, str(number), f"n{number}")
    asked = [tags.tag(str(number), [f"n{number}"]) for number in range(20)]
    assert asked[0] == Tag.MEMORY and asked[1:5] == [None] * 4
    now_s[0] += 10.0
    assert tags.tag("1", ["n1"]) == Tag.MEMORY
    now_s[0] += 10.0
    for second in range(20):
        tags.hear(counted(second, 3.6, "n1", boot_id="other"), "1")
    assert tags.tag("1", ["n1"]) == Tag.COMPUTE


def test_what_is_not_counted_is_no_row_and_a_restarted_agent_begins_again(tmp_path: Path) -> None:
    assert row_of(counted(0, 1.0), counted(5, 1.0, instructions=-1)) == {}
    assert row_of(counted(5, 1.0), counted(5, 1.0)) == {}
    assert row_of(counted(9, 1.0), counted(10, 1.0, cycles=5)) == {}
    row = row_of(counted(0, 2.0), counted(10, 2.0, energy_mj=-1))
    assert row == {"ipc": 2.0, "cycles_per_s": 1e9}
    tags = scored(tmp_path, BY_IPC, [])
    run(tags, 0.4, seconds=10)
    tags.hear(counted(1000, 0.4, boot_id="another"), "7")
    assert tags.tag("7", ["n1"]) is None


def test_a_job_of_many_nodes_is_scored_from_some_of_them_and_not_again_without_news(tmp_path: Path) -> None:
    tags = scored(tmp_path, "COUNTS.append(len(window)) or 0.5", [])
    tags._model._learner.score.__globals__["COUNTS"] = counts = []
    nodes = [f"n{at}" for at in range(40)]
    for node in nodes:
        run(tags, 1.0, node=node, seconds=20)
    for _ in range(5):
        assert tags.tag("7", nodes) == Tag.MIXED
    assert counts == [MOST_NODES * (20 * 10**9 // EVERY_NS - 1)]


def test_the_settings_name_the_model_relative_to_their_file_and_a_wrong_one_is_refused_in_a_line(
    tmp_path: Path,
) -> None:
    scored(tmp_path, BY_IPC, [])
    path = tmp_path / "cluster.toml"
    text = "[budget]\nw = 4000\n[nodes]\ntdp_w = 500\n[jobs]\ntag_model = "
    path.write_text(f'{text}"./scores.py"\n')
    settings = read_settings(path)
    assert settings.jobs is not None and settings.jobs.tag_model == str(tmp_path / "scores.py")
    path.write_text(f'{text}"./none.py"\n')
    with pytest.raises(ConfigError, match=r"cluster.toml:6: jobs.tag_model"):
        read_settings(path)
