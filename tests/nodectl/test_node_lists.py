"""Lists of nodes as Slurm writes them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foundation.shell.errors import UsageError
from foundation.shell.names import MOST, expanded, first_of


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("b04-[09-10]", ["b04-09", "b04-10"]),
        ("n[0-2,7]", ["n0", "n1", "n2", "n7"]),
        ("nodeA,nodeB[001,003],nodeC", ["nodeA", "nodeB001", "nodeB003", "nodeC"]),
        ("rack[0-1]_blade[08-09]", ["rack0_blade08", "rack0_blade09", "rack1_blade08", "rack1_blade09"]),
        ("c427-032,c429-002", ["c427-032", "c429-002"]),
        ("n[08-11]x", ["n08x", "n09x", "n10x", "n11x"]),
        ("b1u01n1,b2u[05,02]n3,b3u03n4", ["b1u01n1", "b2u05n3", "b2u02n3", "b3u03n4"]),
        (" n1, n2\t,n[3-4] \n", ["n1", "n2", "n3", "n4"]),
        ("N01.Cluster.example", ["N01.Cluster.example"]),
    ],
)
def test_a_list_is_read_as_slurm_means_it(text: str, names: list[str]) -> None:
    assert expanded(text) == names


@pytest.mark.parametrize(
    "text",
    ["", ",", "n1 n2", " ", "n [1-2]", "[host001-host012]",
     "n1,", ",n1", "n1,,n2", "n[", "n]", "n[1-3", "n]1[", "n[[1]]", "n[]", "n[1,,2]", "n[a-c]", "n[5-1]",
     "n[1-2-3]", "n[\u0663-\u0665]", "n[1-99999999]", f"n[0-{'9' * 5000}]", "a[1-999]b[1-999]", "n[1-9][1-99999]",
     ",".join(["n[1-60000]"] * 2)],
)  # fmt: skip
def test_what_is_no_list_or_too_many_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        expanded(text)
    assert "\n" not in str(caught.value)


@settings(max_examples=200)
@given(st.text("n0123456789[],-x_", max_size=24))
def test_any_text_is_a_list_or_refused(text: str) -> None:
    try:
        names = expanded(text)
    except UsageError:
        return
    assert 0 < len(names) <= MOST
    assert not set("[],") & set("".join(names))


def test_of_many_names_the_first_are_given_and_how_many_more_there_are() -> None:
    assert first_of([], 2) == "" and first_of(["n1", "n2"], 2) == "n1, n2"
    assert first_of(["n1", "n2", "n3", "n4"], 2) == "n1, n2 and 2 more"
