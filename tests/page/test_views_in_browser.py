"""The page in a real Chromium, served as its process serves it: on a phone and a screen, light and dark, and on paper.

axe-core (of npm) looks for what keeps people out who use a keyboard or a screen reader.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from msgspec.structs import replace

from cluster_agent.page.snapshot import Snapshot, Viewer
from cluster_agent.page.views import assets, fragments, pages
from tests.chromium import ROOT, Page, browser, needs_chromium
from tests.cluster_agent.test_report_page import OUTSIDE, SMALLEST
from tests.conftest import is_failure_in_ci
from tests.page.partitions import job_record, story
from tests.page.test_views import EVIL, hostile

AXE = ROOT / "build/foreign-npm/axe.min.js"
WITHOUT_AXE = "axe-core is not here: scripts/foreign_npm.sh fetches it, if npm is there and reaches its registry"
"""A skip in CI, too: a registry that cannot be reached says nothing of the pages."""

needs_axe = pytest.mark.skipif(not AXE.with_name("complete").exists(), reason=WITHOUT_AXE)
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self';"
    " frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
BASE = "/secret"
PATHS = ("/", "/nodes", "/nodes?rack=r1n01", "/nodes/r1n03", "/jobs", "/jobs/4711", "/budget", "/energy", "/alarms")


class Served:
    """A server of the views below ``BASE``. ``snapshot`` may be replaced: those who follow hear of it."""

    def __init__(self) -> None:
        first = story()
        self.snapshot: Snapshot = replace(first, job=job_record(first.jobs[0]))
        self.viewer = Viewer("ada", True)
        self.changed, self.ended = threading.Event(), threading.Event()
        self.followers, self.refuses = 0, False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *given: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}{BASE}{path}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        split = urlsplit(request.path.removeprefix(BASE))
        query = dict(parse_qsl(split.query))
        if split.path == "/updates":
            self.followers += 1
            if self.refuses:
                _head(request, 503, "text/plain")
                return
            _head(request, 200, "text/event-stream")
            self.changed.wait(20)
            parts = fragments(query["view"], self.snapshot, self.viewer)
            request.wfile.write(b"data: " + json.dumps(parts).encode() + b"\n\n")
            request.wfile.flush()
            self.ended.wait(20)
            return
        if split.path in assets():
            kind, body = assets()[split.path]
            _head(request, 200, kind)
            request.wfile.write(body)
            return
        found = pages(unquote(split.path), query, self.snapshot, self.viewer)
        status, html = found or (404, "")
        _head(request, status, "text/html; charset=utf-8")
        request.wfile.write(html.encode())


def _head(request: BaseHTTPRequestHandler, status: int, kind: str) -> None:
    request.send_response(status)
    for name, value in (("Content-Type", kind), ("Content-Security-Policy", POLICY), ("Cache-Control", "no-store")):
        request.send_header(name, value)
    request.end_headers()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as made:
        yield made


@pytest.fixture
def served(page: Page) -> Iterator[Served]:
    made = Served()
    yield made
    page.show("about:blank", 1280)  # which follows nothing any more
    made.changed.set()
    made.ended.set()
    made.server.shutdown()
    made.server.server_close()


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_nothing_is_cut_or_too_small_on_a_screen_and_a_phone(
    page: Page, served: Served, width: int, dark: bool
) -> None:
    for path in PATHS:
        page.show(served.url(path), width, dark=dark)
        assert page.ask("document.documentElement.scrollWidth") == width, path
        assert page.ask(OUTSIDE) == [], path
        assert page.ask(SMALLEST) >= 12, path
        assert page.ask("getComputedStyle(document.querySelector('nav')).display") == "block", "the style is there"
        assert page.complaints == [], path


@needs_chromium
@needs_axe
def test_axe_finds_nothing_that_keeps_people_out(page: Page, served: Served) -> None:
    """All of its rules, with those of contrast and of best practice; each page in one of four kinds of window."""
    source = AXE.read_text()
    served.viewer = Viewer("ada", False)
    found = """axe.run().then((found) => [found.passes.map((one) => one.id), found.violations.flatMap((one) =>
      one.nodes.map((node) => `${one.id}: ${node.failureSummary} ${node.html}`))])"""
    checked: set[str] = set()
    for at, path in enumerate(PATHS):
        if path == "/alarms":
            served.snapshot = replace(served.snapshot, lost_since_s=1.0, lost_why="Connection refused")
        page.show(served.url(path), (1280, 390)[at % 2], dark=at % 4 > 1)
        page.ask(f"{source}; 0")
        passes, violations = page.ask(found)
        assert violations == [], path
        checked.update(passes)
    assert {"color-contrast", "html-has-lang", "document-title", "skip-link", "td-headers-attr"} <= checked


@pytest.mark.parametrize(
    "npm", ["exit 1", "echo rubbish >axe-core-4.10.3.tgz", "echo rubbish >axe-core-4.10.3.tgz; exit 1"]
)
def test_without_the_registry_of_npm_axe_is_a_skip_in_ci_too(tmp_path: Path, npm: str) -> None:
    for folder in ("scripts", "bin"):
        (tmp_path / folder).mkdir()
    shutil.copy(ROOT / "scripts/foreign_npm.sh", tmp_path / "scripts")
    (tmp_path / "bin/npm").write_text(f"#!/bin/sh\n{npm}\n")
    (tmp_path / "bin/npm").chmod(0o755)
    path = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    ended = subprocess.run(["sh", "scripts/foreign_npm.sh"], cwd=tmp_path, env=path, capture_output=True, text=True)
    assert ended.returncode == 1 and "foreign_npm: axe-core 4.10.3" in ended.stderr
    assert not (tmp_path / "build/foreign-npm").exists(), "setup goes on, and the next one tries it again"
    assert not is_failure_in_ci(WITHOUT_AXE)


@needs_chromium
def test_names_from_elsewhere_start_nothing_and_fit(page: Page, served: Served) -> None:
    for evil in (EVIL, "x" * 5_000):
        whole = hostile(story(), evil)
        served.snapshot = replace(whole, job=job_record(whole.jobs[0]))
        for path in ("/", "/nodes", "/jobs", "/energy", "/jobs/4711"):
            page.show(served.url(path), 390)
            assert page.ask("document.documentElement.scrollWidth") == 390, path
            assert page.ask("document.querySelectorAll('img, [onerror], main script').length") == 0
            assert page.complaints == [], path


@needs_chromium
def test_a_keyboard_reaches_the_content_and_sees_where_it_is(page: Page, served: Served) -> None:
    page.show(served.url("/"), 1280)
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
    assert page.ask("document.activeElement.className") == "skip"
    assert page.ask("document.activeElement.getBoundingClientRect().left") >= 0
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
    assert page.ask("document.activeElement.textContent") == "Overview"
    assert page.ask("getComputedStyle(document.activeElement).outlineWidth") == "3px"


@needs_chromium
def test_parts_change_as_the_server_sends_them_and_the_focus_stays(page: Page, served: Served) -> None:
    page.show(served.url("/nodes/r1n03"), 1280)
    page.ask("document.querySelector('details').open = false")
    page.ask("document.querySelector('#up a').focus()")
    there = page.ask("document.activeElement.href")
    page.ask("window.before = document.querySelector('#why details'); 0")
    rows, why = served.snapshot.nodes, served.snapshot.why["r1n03"]
    calm = replace(rows[2], bound_by="", draws_w=201.0)
    served.snapshot = replace(served.snapshot, nodes=(*rows[:2], calm, *rows[3:]),
                              why={"r1n03": replace(why, budget_w=30_000.0)})  # fmt: skip
    served.changed.set()
    page.ask(
        "new Promise((done) => { const wait = () =>"
        " document.getElementById('answer').textContent.includes('now and then') ? done() : setTimeout(wait, 20);"
        " wait(); })"
    )
    text = page.ask("document.getElementById('answer').textContent").replace("\u00a0", " ")
    assert "it draws 201 W and may draw 262 W" in text
    assert "budget 30000 W" in page.ask("document.getElementById('why').textContent").replace("\u00a0", " ")
    assert page.ask("document.querySelector('#why details') !== window.before"), "it is another element"
    assert page.ask("document.querySelector('details').open") is False
    assert page.ask("document.activeElement.href") == there
    assert page.ask("document.getElementById('live').textContent") == "This page changes as the partition does."
    page.ask("document.getElementById('jobs').innerHTML = '<a href=\"../jobs/4711\">old</a>'")
    page.ask("document.querySelector('#jobs a').focus()")
    page.ask("replacePart(document.getElementById('jobs'), '<p><a href=\"../jobs/4711\">new</a></p>')")
    assert page.ask("document.activeElement.textContent") == "new", "the focus is on the same link"
    assert page.complaints == []


@needs_chromium
def test_a_page_that_hears_nothing_says_so_above_all_else_until_it_hears_something(page: Page, served: Served) -> None:
    first = "document.getElementById('main').firstElementChild"
    page.show(served.url("/"), 1280)
    assert page.ask(f"checkSilence(MOST_SILENT_MS); {first}.id") == "banner"
    page.ask("heardMs -= MOST_SILENT_MS; checkSilence(MOST_SILENT_MS); checkSilence(MOST_SILENT_MS)")
    assert "nothing below changes any more. Reload this page." in page.ask(f"{first}.textContent")
    assert page.ask(f"{first}.nextElementSibling.id") == "banner", "it is said once"
    served.changed.set()
    page.ask(f"new Promise((done) => {{ const wait = () => {first}.id === 'banner' ? done() : setTimeout(wait, 20);"
             " wait(); })")  # fmt: skip
    served.refuses = True
    page.show(served.url("/"), 1280)
    page.ask(f"new Promise((done) => {{ const wait = () => {first}.id === 'banner' ? setTimeout(wait, 20) : done();"
             " wait(); })")  # fmt: skip
    assert "The connection to the server has ended" in page.ask(f"{first}.textContent")


@needs_chromium
def test_without_a_script_the_page_says_all_of_it_and_how_to_see_changes(page: Page, served: Served) -> None:
    page.show(served.url("/jobs"), 1280, script=False)
    text = page.ask("document.body.innerText")
    assert "Your next job, 4712, waits" in text and "reload it to see what has changed" in text
    assert served.followers == 0


@needs_chromium
def test_on_paper_all_columns_are_there_and_the_way_to_other_views_is_not(page: Page, served: Served) -> None:
    for path in ("/", "/jobs"):
        page.show(served.url(path), 718, media="print")
        assert page.ask("document.documentElement.scrollWidth") == 718
        assert page.ask(OUTSIDE) == []
        assert page.ask("getComputedStyle(document.querySelector('nav')).display") == "none"
        assert page.pdf().startswith(b"%PDF")
