"""Pages for people: short sentences, and facts that are those of the code and of the committed results."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tunecheck.cli import main
from tunecheck.core.finding import Finding
from tunecheck.core.paths import checkout_folder
from tunecheck.results import VERDICT_SCHEMA, Report, RunReport

ROOT = checkout_folder()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MOST_WORDS = 25
"""Of nine sentences in ten."""
ODD_START = re.compile(r"(Of|What|That|Where|Whose)\b")
MOST_ODD_STARTS = 1 / 20
NOT_PROSE = (
    re.compile(r"<!-- (\w+): written by.*?<!-- \1: end -->", re.DOTALL),
    re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.DOTALL | re.MULTILINE),
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"^ *#.*$|^ *\|[ :|-]*$", re.MULTILINE),
    re.compile(r"!\[[^]]*\]\([^)]*\)"),
)
"""Generated parts, code, comments, headings, the rules of tables, pictures."""


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page; code is one word, and each item of a list and cell of a table stands alone."""
    for part in NOT_PROSE:
        text = part.sub("", text)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "CODE", text).replace("*", "")
    text = re.sub(r"^ *\|.*$", lambda row: row[0].replace("|", "\n\n"), text, flags=re.MULTILINE)
    for block in re.split(r"\n\s*(?:-|\d+\.) +|\n\s*\n", f"\n{text}"):
        words = " ".join(block.split())
        yield from (
            found for found in re.split(r"(?<=[.!?])[)\"']* +(?=[A-Z0-9\"(])", words) if re.search("[A-Za-z]", found)
        )


def longest_but_a_tenth(counts: list[int]) -> int:
    """Return the 90th percentile."""
    return sorted(counts)[max(0, -(-len(counts) * 9 // 10) - 1)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_plain_english(page: Path):
    """Short sentences that begin with their subject."""
    found = list(sentences(page.read_text(encoding="utf-8")))
    odd = [sentence for sentence in found if ODD_START.match(sentence)]

    assert found
    assert longest_but_a_tenth([len(sentence.split()) for sentence in found]) <= MOST_WORDS
    assert len(odd) <= MOST_ODD_STARTS * len(found), odd


def test_sentences_are_counted_as_a_reader_would():
    """Without code and generated parts; each item of a list and each cell of a table by itself."""
    page = "# A\n\nOne `a b` two. Three\nfour!\n\n| a. b | c |\n|---|---|\n"
    page += "- five (see [six](x.md))\n- seven\n\n```\nno. No\n```\n"
    page += "<!-- x: written by y -->\nnot. This\n<!-- x: end -->"

    assert list(sentences(page)) == ["One CODE two.", "Three four!", "a. b", "c", "five (see six)", "seven"]
    assert longest_but_a_tenth([*range(1, 11)]) == 9
    assert ODD_START.match("What is told")


def test_the_readme_can_be_read_in_one_go():
    """In 120 lines."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_readme_has_the_numbers_of_the_releases_and_frameworks():
    """Those that gave the same bits, and the releases whose bug is named."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pairs, rows = (
        json.loads((ROOT / "reports/releases" / name).read_text()) for name in ("pairs.json", "frameworks.json")
    )
    same = sum(bool(row.get("same")) for row in rows)

    assert f"{same} trainings by {len({row['framework'] for row in rows})} frameworks" in readme
    assert all(row["same"] or not row["repeats"] for row in rows)
    assert len(pairs) == 16, "the README says sixteen releases"
    assert "[sixteen releases that shipped one silently]" in readme


def test_the_readme_has_the_numbers_of_public_scripts():
    """Those of the report, once it is there."""
    readme, report = (ROOT / "README.md").read_text(encoding="utf-8"), ROOT / "reports" / "scripts" / "public.md"
    (cells,) = re.findall(r"<!-- public: numbers of reports/scripts/public.md --> \| (.*) \|\n", readme)
    numbers = re.findall(r"\d+ of \d+", cells)

    assert len(numbers) == 2 if report.exists() else cells == "being measured | being measured"
    assert all(number in report.read_text(encoding="utf-8") for number in numbers)


def help_of(capsys, *command: str) -> str:
    """What the command prints with --help."""
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    return capsys.readouterr().out


def test_the_command_line_is_documented(capsys):
    """Every command; every option of watch; every card class."""
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    commands = re.findall(r"^    (\w[\w-]*)", help_of(capsys), re.MULTILINE)
    options = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", help_of(capsys, "watch"), re.MULTILINE))
    table = page.partition("Options of `tunecheck watch`")[2].partition("\n## ")[0]

    assert len(commands) > 15
    assert {name for name in commands if f"$ tunecheck {name}" not in page} == set()
    assert set(re.findall(r"`(--[\w-]+)", table)) == options - {"--help"}
    (cards,) = re.findall(r"`--card CLASS` \|.*?: (.*) \|", page)
    assert sorted(re.findall("`(.*?)`", cards)) == sorted(
        path.stem for path in (ROOT / "configs" / "cards").glob("*.yaml")
    )


@pytest.mark.parametrize(("heading", "kind"), [("The session", Report), ("A run", RunReport), ("A finding", Finding)])
def test_the_fields_of_a_verdict_are_documented(heading: str, kind: type):
    """Each of them, and no other."""
    page = (ROOT / "reports" / "README.md").read_text(encoding="utf-8")
    section = page.partition(f"### {heading}\n")[2].partition("\n#")[0]
    listed = {
        name for cell in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)
    }

    assert listed == {field.name for field in dataclasses.fields(kind)}
    assert f"| `schema` | {VERDICT_SCHEMA} |" in page


def test_the_sites_navigation_has_every_page():
    """Of docs/, and those of the reports that people read."""
    nav = json.dumps(YAML(typ="safe").load((ROOT / "mkdocs.yml").read_text())["nav"])

    assert {path.name for path in (ROOT / "docs").glob("*.md") if f'"docs/{path.name}"' not in nav} == set()
    assert all((ROOT / page).is_file() for page in re.findall(r'"([\w/.-]+\.md)"', nav))


def test_the_strategies_page_begins_with_what_its_script_counts():
    """The comparisons below it are those of sessions that are not kept."""
    script = ROOT / "scripts" / "strategies-table.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)

    assert (ROOT / "docs" / "strategies.md").read_text(encoding="utf-8").startswith(done.stdout.rstrip())
