"""Pages for people with a task: short, linked, ending with what to do when it fails, and true in what they name."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from docs.generator.parts_picture import BOXES, picture_pages
from docs.generator.written_pages import ROOT, pages, written
from tests.test_words import WORDS as REPLACED

DOCS = ROOT / "docs"
MANUAL = [page for page in pages() if page.name not in ("README.md", "glossary.md")]
"""Pages of the manual: the front page leads to them, the glossary is a list."""
LINKED = [
    *pages(),
    *sorted((DOCS / "notes").glob("*.md")),
    *sorted((DOCS / "reference").glob("*.md")),
    *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md")),
    *(ROOT / folder / "README.md" for folder in ("debian", "hil_tests", "systemd", "tests")),
]


def test_commands_and_tables_of_published_rows_are_not_written_by_hand() -> None:
    text = (
        "# Two words\n\n```sh\nnot by hand\n```\n\n<!-- rows: benchmarks/published/x.csv -->\n\n| no | 1 |\n|---|\n\n"
    )
    assert list(written(text)) == ["# Two words"]
    table = ["| a table | by hand |", "|---|---|"]
    assert list(written(f"{text}{table[0]}\n{table[1]}\n\nfour words more –\n")) == [
        "# Two words",
        *table,
        "four words more –",
    ]


@pytest.mark.parametrize("page", MANUAL, ids=lambda page: page.name)
def test_a_page_opens_with_what_one_gets_and_ends_with_what_to_do_when_it_fails(page: Path) -> None:
    text = page.read_text()
    first, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    assert len(first.splitlines()) > 3 and sections[-1].startswith("When it fails\n")


@cache
def printed() -> str:
    """All that the programs can print, and the sources, in which longer texts are split over lines."""
    errors = re.sub(r"\\([<|])", r"\1", (DOCS / "reference" / "errors.md").read_text())
    folders = (
        "foundation",
        "nodectl",
        "pmu",
        "firmware_bridge",
        "cluster_agent",
        "calibration",
        "twin",
        "benchmarks",
        "systemd",
        "lab",
    )
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*"))]
    sources = [path.read_text() for path in files if path.suffix in (".py", ".c", ".h", ".sh", ".service")]
    return errors + "\n".join(re.sub(r'"\s*\n\s*f?"', "", source) for source in sources)


def symptoms(page: Path) -> list[str]:
    """Quoted texts in the first column of the last section's table, in the parts between what is filled in."""
    last = page.read_text().rpartition("## When it fails")[2]
    cells = [line.split("|")[1] for line in last.splitlines() if line.startswith("| ")]
    quoted = [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]
    return [part.strip(" :;,.") for text in quoted for part in text.split("…")]


@pytest.mark.parametrize("page", MANUAL, ids=lambda page: page.name)
def test_what_a_page_says_one_sees_is_what_the_programs_print(page: Path) -> None:
    assert [text for text in symptoms(page) if text not in printed()] == []


@cache
def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {re.sub(r"[ -]+", "-", text.strip()) for text in plain}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not target.startswith("http") and not (file.exists() and (not anchor or anchor in anchors(file))):
            wrong.append(target)
    assert wrong == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_a_page_has_none_of_the_words_that_the_glossary_replaces(page: Path) -> None:
    text = "\n".join(written(page.read_text().partition("## Legacy names")[0]))
    prose = re.sub(r"`[^`]*`|\*[^*]+\*|\]\([^)]*\)", "", text)  # quoted, mentioned, an address
    assert re.findall(rf"(?i)(?<![\w-])(?:{'|'.join(REPLACED)})(?![\w-])", prose) == []


SUFFIXES = "py|c|h|md|sh|service|conf|dts|dtsi|ptx"


def test_every_source_that_a_page_names_is_there() -> None:
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name not in (".venv", "build", "out")]
    found = [path for folder in folders for path in folder.rglob("*.*") if path.suffix[1:] in SUFFIXES.split("|")]
    files = [path.relative_to(ROOT).as_posix() for path in [*found, *ROOT.glob("*.*")]]
    ends = {"/".join(file.split("/")[start:]) for file in files for start in range(file.count("/") + 1)}
    made_here = re.compile(
        r"newest_first\.py|throttling\.py|my_policy\.py|\./\w+\.py|app\.c|job\.sh|(?:system|slurm|gres|mosquitto)\.conf|NAME|FILE"
    )
    wrong = [
        f"{page.name}: {name}"
        for page in pages()
        for name in re.findall(rf"`((?:[\w.-]+/)*[\w-]+\.(?:{SUFFIXES}))`", page.read_text())
        if name not in ends and not made_here.search(name)
    ]
    assert wrong == []


WALK = re.sub(r"\s+", " ", "\n".join(written((DOCS / "walkthrough.md").read_text())))


def test_every_file_of_the_walkthrough_is_there() -> None:
    named = set(re.findall(r"`((?:\w+/)+[\w.]*)`", WALK)) - {"cpu/7", "cpu/policy7/max_khz"}  # rows of an export
    assert len(named) > 50
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_every_function_of_the_walkthrough_is_in_the_file_that_it_names() -> None:
    named = re.findall(r"`([\w.]+)` \(`((?:\w+/)+\w+\.\w+)`", WALK) + [
        (first, file) for first, file in re.findall(r"`(\w+)` and `\w+` \(`((?:\w+/)+\w+\.\w+)`", WALK)
    ]
    assert len(named) > 40
    wrong = []
    for name, file in named:
        text = (ROOT / file).read_text()
        kinds = r"(?:class|def)" if file.endswith(".py") else r"[\w *]+?"
        wrong += [
            f"{file}: {part}" for part in name.split(".") if not re.search(rf"^ *{kinds} \*?{part}\b", text, re.M)
        ]
    assert wrong == []


def test_every_part_of_the_picture_is_a_folder_and_its_letters_can_be_read_on_a_small_screen() -> None:
    assert [box.name for box in BOXES if box.kind == "part" and not (ROOT / box.name).is_dir()] == []
    picture = picture_pages()["pictures/parts.svg"]
    assert (DOCS / "pictures" / "parts.svg").read_text() == picture
    width = float(re.findall(r'viewBox="0 0 (\d+)', picture)[0])
    assert min(map(float, re.findall(r"font-size:(\d+)px", picture))) * 360 / width >= 10
    assert 'fill="#f4f7f9"/>' in picture.partition("<text")[0], "a background of its own, in light and dark themes"
