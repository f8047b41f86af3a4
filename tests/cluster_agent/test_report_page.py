"""The page of `clusterctl report` in a real Chromium, at the widths of a phone and of a screen, and on paper."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from cluster_agent.cli import main
from cluster_agent.replay.compare import Run
from cluster_agent.reports import lanes, over_time
from cluster_agent.reports.lanes import Steps
from cluster_agent.scheduler.job_columns import Int64s
from tests.chromium import Page, browser, needs_chromium

SAMPLE = Path(__file__).parents[2] / "cluster_agent" / "samples" / "generated-500.swf"
HOSTILE = "<b onclick=alert(1)>&amp;'\"<img src=x onerror=alert(2)><script>document.title='mine'"
LONG = "a-log-whose-name-has-no-place-where-it-could-be-broken-" + 60 * "x"


@pytest.fixture(scope="module")
def replays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fourteen: a log of a hostile name with five seeds of a closed loop, one of a long name, and a cap on watts."""
    root = tmp_path_factory.mktemp("report")
    for at, name in enumerate((HOSTILE, LONG)):
        log = root / f"{name}.swf"
        shutil.copy(SAMPLE, log)
        for policy in ("easy", "easy-sjbf:estimate=mean2,correct=incremental"):
            command = ["replay", str(log), "--policy", policy, "--machine", "32"]
            for seed in range(1, 6) if at == 0 else [0]:
                out = root / "out" / f"{at}-{policy[:9]}-{seed}"
                loop = ["--closed-loop", "think=600", "--seed", str(seed)] if seed else []
                assert main([*command, "--out", str(out), *loop]) == 0
    capped = ["replay", str(SAMPLE), "--machine", "generic", "--cap", str(SAMPLE.parent / "falling-cap.csv")]
    for policy in ("powercap", "easy"):
        assert main([*capped, "--policy", policy, "--out", str(root / "out" / f"2-{policy}")]) == 0
    return root / "out"


@pytest.fixture(scope="module")
def report(replays: Path) -> Path:
    file = replays.parent / "report.html"
    assert main(["report", str(replays), "--baseline", "easy", "--html", str(file)]) == 0
    return file


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as made:
        yield made


SMALLEST = """Math.min(...[...document.querySelectorAll('body *')]
  .filter((one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()))
  .filter((one) => !['SCRIPT', 'STYLE'].includes(one.tagName))
  .map((one) => parseFloat(getComputedStyle(one).fontSize)))"""
OUTSIDE = """[...document.querySelectorAll('td, th, p, select, button, h1, h2, h3, .name, .value, .lane, text')]
  .filter((one) => one.getBoundingClientRect().width > 0)
  .filter((one) => one.getBoundingClientRect().left < -0.5
    || one.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5
    || (one.clientWidth > 0 && one.scrollWidth > one.clientWidth + 1 && one.tagName !== 'SELECT'))
  .map((one) => `${one.tagName} ${one.className} ${one.textContent.slice(0, 40)}`)"""
CONTRAST = """(() => {
  const light = (text) => {
    const parts = text.match(/[\\d.]+/g).slice(0, 3).map((one) => one / 255)
      .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const ground = light(getComputedStyle(document.documentElement).backgroundColor);
  const ratio = (text) => {
    const both = [light(text), ground].sort((one, other) => other - one);
    return (both[0] + 0.05) / (both[1] + 0.05);
  };
  const least = (which, of) => Math.min(...[...document.querySelectorAll(which)]
    .map((one) => ratio(getComputedStyle(one)[of])));
  return [least('p, td, figcaption, small, .name, .value, .lane, summary', 'color'), least('text', 'fill'),
    least('.bar, .dot, .area, .mark, .reference, .published', 'stroke'), least('.job', 'fill')];
})()"""


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_nothing_is_cut_or_too_small_to_read_on_a_screen_and_a_phone(
    page: Page, report: Path, width: int, dark: bool
) -> None:
    """Text of 12 px or more; contrasts as WCAG 2.2 asks: 4.5 for text, 3 for what is drawn."""
    page.show(report, width, dark=dark)
    page.ask("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.ask("loaded")
    assert page.ask("document.documentElement.scrollWidth") == width
    assert page.ask(OUTSIDE) == []
    assert page.ask(SMALLEST) >= 12
    text, labels, drawn, jobs = page.ask(CONTRAST)
    assert min(text, labels) >= 4.5
    assert min(drawn, jobs) >= 3
    assert page.complaints == []


@needs_chromium
def test_a_page_on_paper_has_all_columns_and_what_was_folded(page: Page, report: Path) -> None:
    page.show(report, 718, media="print")  # A4 without Chromium's margins
    assert page.ask("document.documentElement.scrollWidth") == 718
    assert page.ask(OUTSIDE) == []
    assert page.ask(SMALLEST) >= 12
    assert page.ask("[...document.querySelectorAll('details')].some((one) => one.open)")
    page.ask("document.querySelectorAll('details').forEach((one) => { one.open = false; })")
    assert page.ask("document.querySelector('details td').checkVisibility()")
    assert page.ask("getComputedStyle(document.querySelector('.controls')).display") == "none"
    assert page.pdf().startswith(b"%PDF")


@needs_chromium
def test_the_effect_is_on_the_first_screen(page: Page, report: Path) -> None:
    for width in (1280, 390):
        page.show(report, width)
        assert page.ask("document.querySelector('#effect .rows').getBoundingClientRect().bottom") < 800
        assert page.ask("document.querySelectorAll('#effect .bar').length") == 0, "three logs, one with seeds"
        assert page.ask("document.querySelector('.said').textContent").startswith("Best of all: with easy-sjbf")


@needs_chromium
def test_without_its_script_a_page_shows_two_replays_and_with_it_any_of_them_and_a_part(
    page: Page, report: Path
) -> None:
    lanes = "document.querySelectorAll('.runs .lane').length"
    boxes = "[...document.querySelectorAll('.lane svg')].map((one) => one.getAttribute('viewBox'))"
    page.show(report, 1280, script=False)
    assert page.ask(lanes) == 6
    assert page.ask("document.querySelector('.controls').getBoundingClientRect().height") == 0
    drawn = page.ask("document.querySelector('.gantt path').getAttribute('d')")
    whole = page.ask(boxes)
    texts = page.ask("[...document.querySelectorAll('.lane, .time')].map((one) => one.textContent)")
    page.show(report, 1280)
    page.ask("loaded")
    assert page.ask("document.querySelector('.gantt path').getAttribute('d')") == drawn
    assert page.ask(boxes) == whole
    assert page.ask("[...document.querySelectorAll('.lane, .time')].map((one) => one.textContent)") == texts
    capped = page.ask("runs.findIndex((one) => one.name.startsWith('powercap'))")
    page.ask(f"show(panels[1], runs[{capped}])")
    assert page.ask(lanes) == 7
    assert page.ask("[...panels[1].querySelectorAll('.cap')].length") == 1
    page.ask("document.querySelector('[data-move=nearer]').click()")
    assert {box.split()[0] for box in page.ask(boxes)} == {"2500"}
    assert {box.split()[2] for box in page.ask(boxes)} == {"5000"}
    page.ask("document.querySelector('[data-move=whole]').click()")
    assert {box.split()[2] for box in page.ask(boxes)} == {"10000"}
    assert page.complaints == []


@needs_chromium
def test_a_name_brings_neither_markup_nor_a_script_along_and_nothing_is_fetched(page: Page, report: Path) -> None:
    page.show(report, 1280)
    page.ask("loaded")
    assert page.ask("document.title") == "Replays (simulated)"
    assert page.ask("document.querySelectorAll('b, img, [onclick]').length") == 0
    assert "<b onclick=alert(1)>" in page.ask("document.querySelector('summary').parentNode.parentNode.textContent")
    assert page.ask("performance.getEntriesByType('resource').length") == 0
    links = "[...document.querySelectorAll('[href], [src]')]"
    assert page.ask(f"{links}.length > 0 && {links}.every((one) => one.href.startsWith('data:text/csv'))")
    refused = "(() => { const one = document.createElement('script'); one.textContent = 'window.mine = 1';"
    page.ask(refused + " document.body.append(one); })()")
    assert page.ask("typeof window.mine") == "undefined", "the policy of the content lets no other script run"


def test_what_is_drawn_over_time_is_what_the_jobs_did() -> None:
    """Three jobs on four processors, by hand: a waits for nothing, b 10 s and c, which ends last, 30 s."""

    def column(*values: int) -> Int64s:
        return np.array(values, np.int64)

    power = np.array([100.0, 120.0]), np.array([50.0, 80.0]), np.array([np.inf, 90.0])
    run = Run(
        Path(), "p", "g", 0, "t", True, {}, {"bsld_tau_s": 10}, ["a", "b", "c"], column(100, 100, 110),
        column(100, 110, 140), column(140, 130, 200), column(2, 1, 4), ["0-1", "2", "0 1-2 3"], power,
    )  # fmt: skip
    used, queue = over_time.in_use(run), over_time.waiting(run)
    assert dict(zip(used.times_s.tolist(), used.values.tolist(), strict=True)) == {0: 2, 10: 3, 30: 2, 40: 4, 100: 0}
    assert dict(zip(queue.times_s.tolist(), queue.values.tolist(), strict=True)) == {0: 1, 10: 1, 40: 0}
    found = {lane.name: lane for lane in over_time.lanes(run, 100.0, True)}
    assert found["processors or nodes in use"].line == "M0 250V125h1000v-63h2000v63h1000v-125h6000v250H10000V250"
    assert found["power"].second == "M2000 0H10000", "no cap, then 90 W, the highest value"
    assert found["which job is where"].boxes == (
        "m0 0h4000v125h-4000z",
        "m1000 125h2000v63h-2000z",
        "m4000 0h6000v62h-6000zm0 62h6000v126h-6000zm0 126h6000v62h-6000z",
        "",
    )
    many = np.arange(5000.0)
    thin = lanes.thinned(Steps(many, many % 7, 5000.0))
    assert len(thin.times_s) == lanes.POINTS
    area = (thin.values * np.diff([*thin.times_s, thin.end_s])).sum()
    assert area == pytest.approx((many % 7).sum()), "means, not samples"


def test_a_replay_that_started_no_job_has_empty_cells_and_no_picture(
    replays: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = shutil.copytree(replays / "2-easy", tmp_path / "idle")
    titles, *_ = (given / "jobs.csv").read_text().splitlines()
    (given / "jobs.csv").write_text(titles + "\n")
    (given / "metrics.json").write_text(
        (given / "metrics.json").read_text().replace('"unstarted": 0', '"unstarted": 500')
    )
    both = [str(given), str(replays / "2-powercap")]
    capsys.readouterr()
    assert main(["report", *both]) == 0
    assert "| easy |  |  |  |  |  |  |" in capsys.readouterr().out
    assert main(["report", *both, "--html", str(tmp_path / "idle.html")]) == 0
    assert "there is nothing to compare it with" in (tmp_path / "idle.html").read_text()
    capsys.readouterr()
    assert main(["report", str(given), "--figures", str(tmp_path / "figures")]) == 1
    error = capsys.readouterr().err
    assert "nothing to draw, since no replay has started a job" in error and error.count("\n") == 1
    assert not (tmp_path / "figures").exists()


def test_figures_without_matplotlib_are_refused_in_one_line_that_says_what_to_install(
    replays: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "cluster_agent.reports.paper_figures", raising=False)
    capsys.readouterr()
    assert main(["report", str(replays / "2-easy"), "--figures", str(tmp_path / "figures")]) == 1
    error = capsys.readouterr().err
    assert "--figures: they need matplotlib (pip install 'nodectl[plots]')" in error and error.count("\n") == 1


def test_seeds_of_a_condition_are_one_section_with_an_interval_over_them(
    replays: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(path) for path in sorted(replays.glob("0-*"))]
    file = tmp_path / "seeds.html"
    capsys.readouterr()
    assert main(["report", *given]) == 0
    text = capsys.readouterr().out
    assert text.count("## ") == 1 and "| easy | 5 | " in text
    assert "Intervals: over 5 seeds." in text
    assert re.search(r"correct=incremental \| -[\d.]+ \| -[\d.]+ to [+-][\d.]+ \|.*\| 2,500 \|", text)
    assert main(["report", *given, "--html", str(file)]) == 0
    effect = re.search("<figure id=effect>.*?</figure>", file.read_text())
    assert effect and effect[0].count("class=bar ") == 1


def test_a_page_is_one_file_below_a_megabyte(report: Path) -> None:
    text = report.read_text()
    assert len(text.encode()) < 1_000_000
    assert "default-src 'none'" in text


def test_more_replays_than_a_page_has_room_for_leave_it_below_a_megabyte(
    replays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cluster_agent.reports import page as made

    monkeypatch.setattr(made, "MOST_BYTES", 90_000)
    monkeypatch.setattr(made, "TABLE_BYTES", 3_500)
    file = tmp_path / "small.html"
    assert main(["report", str(replays), "--html", str(file)]) == 0
    assert file.stat().st_size < 90_000
    assert re.search(r"\d of 14 replays are in this page", file.read_text())
    assert re.search(r"[12] of 3 conditions are in this page", file.read_text())


def test_figures_are_svg_and_pdf_with_their_numbers_and_equal_bytes_each_time(replays: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is missing: install nodectl[plots]")
    given = [str(replays / f"2-{policy}") for policy in ("easy", "powercap")]
    for folder in ("one", "two"):
        assert main(["report", *given, "--figures", str(tmp_path / folder)]) == 0
    names = {path.name for path in (tmp_path / "one").iterdir()}
    pictures = ("effect", "energy", "spread", "used", "waiting", "watts")
    assert {f"{one}.{kind}" for one in pictures for kind in ("svg", "pdf", "csv")} == names
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    words = "".join(ElementTree.parse(tmp_path / "one" / "effect.svg").getroot().itertext())
    assert "mean bounded slowdown / that of easy" in words
    with (tmp_path / "one" / "effect.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    (row,) = rows
    assert (row["policy"], row["low"], row["high"]) == ("powercap", "", "")
    assert float(row["value"]) == pytest.approx(29.503, abs=0.001)  # the mean of powercap; easy has 1


def test_a_policy_s_name_is_drawn_as_it_is_and_stays_in_its_row(
    replays: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dollars began a formula that could not be set, and an end of line a new row."""
    pytest.importorskip("matplotlib", reason="matplotlib is missing: install nodectl[plots]")
    given = shutil.copytree(replays / "2-powercap", tmp_path / "run")
    manifest = json.loads((given / "manifest.json").read_text())
    manifest["policy"] = {"name": "$\\frac{$a\n_b", "parameters": {}, "origin": {"sha256": "01234567"}}
    (given / "manifest.json").write_text(json.dumps(manifest))
    assert main(["report", str(given), "--figures", str(tmp_path / "figures")]) == 0
    assert "$\\frac{$a" in (tmp_path / "figures" / "used.svg").read_text()
    capsys.readouterr()
    assert main(["report", str(given)]) == 0
    assert "\n| $\\frac{$a _b@01234567 | " in capsys.readouterr().out
