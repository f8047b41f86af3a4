"""How a policy is chosen, and what is said when it cannot be."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.policies import registry

HAVE_FUNCTIONS = (
    "wfp3",
    "powercap",
    "fcfs-killer",
    "eco",
    "rmap",
    "moldable",
    "rule-based",
    "planned",
)  # each compose makes a new one
DOCS = Path(__file__).parents[2] / "docs" / "reference" / "policies.md"


@pytest.mark.parametrize("name", registry.names())
def test_every_policy_composes_names_its_source_and_stands_in_the_docs(name: str) -> None:
    policy = registry.policy(name)
    assert policy.name == name
    assert policy.source
    assert registry.choose(name).composed == policy.compose(policy.params()) or name in HAVE_FUNCTIONS
    assert f"### `{name}`\n" in DOCS.read_text()
    module = importlib.import_module(f"tests.cluster_agent.test_policy_{name.replace('-', '_')}")
    assert module.__doc__, "one file, one line in the registry, one test"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("esy", "no policy is called 'esy' (nearest: easy); see `clusterctl policies`"),
        ("easy:estmate=x", "--policy easy:estmate=x: easy has no parameter 'estmate' (nearest: estimate)"),
        (
            "easy:estimate=x",
            "--policy easy:estimate=x: estimate cannot be 'x': one of requested, clairvoyant, mean2, learned",
        ),
        ("easy:ties", "--policy easy:ties: 'ties' is not key=value"),
        ("easy:ties=sc15,ties=sc15", "--policy easy:ties=sc15,ties=sc15: ties is given twice"),
        ("fcfs:estimate=mean2", "--policy fcfs:estimate=mean2: fcfs has no parameter 'estimate'"),
        ("easy:weight=small", "--policy easy:weight=small: weight=small needs estimate=learned"),
        ("wfp3:power=big", "--policy wfp3:power=big: power cannot be 'big': a number is needed"),
        (
            "easy:correct=doubling",
            "--policy easy:correct=doubling: correct=doubling needs an estimate that can be too short:"
            " estimate=mean2|learned",
        ),
    ],
)
def test_a_wrong_choice_is_answered_in_one_line(text: str, message: str) -> None:
    with pytest.raises(WrongUseError) as caught:
        registry.choose(text)
    assert str(caught.value) == message
    assert caught.value.exit_status == 2


def test_parameters_reach_the_composition() -> None:
    chosen = registry.choose("easy-sjbf:estimate=mean2, correct=incremental, ties=sc15").composition
    assert (chosen.estimate, chosen.correct, chosen.ties) == ("mean2", "incremental", "sc15")
    assert (chosen.backfill, chosen.scan) == ("easy", "shortest")


def test_a_phase_that_is_none_is_said_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import msgspec\n"
        "from cluster_agent.scheduler.policies.api import Policy\n"
        "from cluster_agent.scheduler.policy_phases import Composition\n"
        "class Params(msgspec.Struct, frozen=True): pass\n"
        "POLICY = Policy('mine', 'x', 'ours', Params, lambda params: Composition(backfill='eazy'))\n"
    )
    with pytest.raises(WrongUseError) as caught:
        registry.choose(str(file))
    assert "no backfill is called 'eazy': one of none, list, easy, conservative, compress" in str(caught.value)
