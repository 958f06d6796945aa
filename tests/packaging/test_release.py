"""What a release consists of agrees: version, changelog, workflows, documentation."""

from __future__ import annotations

import re

import pytest
from ruamel.yaml import YAML

from tunecheck import __version__
from tunecheck.core.paths import checkout_folder

ROOT = checkout_folder()
WORKFLOWS = sorted([*(ROOT / ".github" / "workflows").glob("*.yml"), *(ROOT / "kit" / "github").glob("*-*.yml")])
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "reports").rglob("*.md")])


def test_the_newest_entry_of_the_changelog_is_this_version():
    """A release has its section."""
    assert re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0] == __version__


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_reads_only_and_pins_its_actions(path):
    """By commit or major version; what it runs exists."""
    text = path.read_text()
    workflow = YAML(typ="safe").load(text)

    assert workflow["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] for job in workflow["jobs"].values())
    assert all(re.search(r"@([0-9a-f]{40} # v\S+|v\d+)$", line) for line in re.findall("uses: (.*)", text))
    assert all((ROOT / script).is_file() for script in re.findall(r"scripts/[\w-]+\.sh", text))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_of_a_page_lead_somewhere(path):
    """To a file of the repository, and to a heading where one is named."""
    for target, heading in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", path.read_text()):
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), target
        assert not heading or heading in anchors(file.read_text())


def anchors(text):
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_script_is_documented():
    """In the table of docs/cli.md or in CONTRIBUTING."""
    told = (ROOT / "docs" / "cli.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    parts = {"common.sh": "scripts/gpu-test.sh", "bare-quick.py": "scripts/bench-quick.sh"}
    parts |= {"evidence-tables.py": "scripts/gpu-evidence.sh"}
    files = {path.name for path in (ROOT / "scripts").iterdir() if path.is_file()}

    assert {name for name in files if parts.get(name, f"scripts/{name}") not in told} == set()
