"""The view model: the same sentences for every renderer, folded where many checks are unjudged."""

from __future__ import annotations

import html
import io
from dataclasses import replace
from pathlib import Path

import pytest
from report_rows import FAILED, MISSING, PASSED, report, row
from rich.console import Console

from tunecheck.checks import CHECKS
from tunecheck.core.finding import Finding, Status
from tunecheck.report.files import junit_xml, summary_markdown, workflow_commands
from tunecheck.report.page import page_html
from tunecheck.report.terminal import print_report
from tunecheck.report.view import MOST_NAMES, MOST_REASONS, check_page, failure, rule, run_view
from tunecheck.results import Report


def terminal(made: Report) -> str:
    """What a wide terminal shows."""
    out = io.StringIO()
    print_report(made, Console(width=200, no_color=True, file=out))
    return out.getvalue()


def rendered(made: Report, folder: Path) -> dict[str, str]:
    """The report by every renderer."""
    return {
        "terminal": terminal(made),
        "summary": summary_markdown(made),
        "page": page_html(made, folder),
        "junit": junit_xml(made),
        "github": "\n".join(workflow_commands(made, {"GITHUB_ACTIONS": "true"})),
    }


def unjudged(count: int, reason: str) -> list[Finding]:
    """So many unjudged checks for this reason."""
    return [replace(MISSING, check=f"check_{at}", detail=reason) for at in range(count)]


@pytest.mark.parametrize("renderer", ["terminal", "summary", "page", "junit", "github"])
def test_every_renderer_has_all_that_is_known_of_a_failure(tmp_path, renderer):
    """Under the same labels."""
    text = html.unescape(rendered(report(row(FAILED, outcome="fail")), tmp_path)[renderer].replace("\\", ""))

    for label, words in failure("", FAILED).rows:
        assert label in text
        assert words in text


@pytest.mark.parametrize("renderer", ["terminal", "summary", "page", "junit"])
def test_the_precision_is_in_every_report(tmp_path, renderer):
    """Limits and times of fp32 are not those of bf16."""
    assert "bf16" in rendered(report(row(PASSED, device="cpu", precision="bf16")), tmp_path)[renderer]


@pytest.mark.parametrize("renderer", ["terminal", "summary", "page", "junit", "github"])
def test_why_a_run_was_not_judged_is_in_every_report(tmp_path, renderer):
    """File and line of a crash included."""
    crashed = row(outcome="error", reason="the training failed: RuntimeError: boom (my/trainer.py:7)")

    assert "RuntimeError: boom (my/trainer.py:7)" in rendered(report(crashed), tmp_path)[renderer].replace("\\", "")


def test_a_block_is_aligned_and_wrapped():
    """Below its label, at words; text that a terminal could obey is not in it."""
    finding = replace(FAILED, detail="\x1b[31mred " + "word " * 30, remedy="")
    lines = failure("quick/tiny", finding).block().splitlines()

    assert lines[0] == "quick/tiny: base_untouched"
    at = lines.index("  measured        3, limit 2")
    assert lines[at + 1].startswith("  detail          red word word")
    assert lines[at + 2].startswith("                  word word")
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "  read more       tunecheck explain base_untouched"
    assert "\x1b" not in "\n".join(lines)


def test_the_name_of_a_tensor_is_wrapped_at_its_dots():
    """Where it is longer than the line; nothing of it gets lost."""
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"
    block = failure("", replace(FAILED, detail=f"unlike: {name}, {name}")).block(60)

    assert max(map(len, block.splitlines())) <= 60
    assert "".join(block.split()).count(name) == 2
    assert block.count("  0.self_attn.q_proj.lora_A.default.\n") == 2


def test_the_rule_of_every_check_is_a_sentence():
    """Those whose limit only a run can give, too; a check of another version has none."""
    assert all(rule(check).endswith((".", "?")) for check in CHECKS)
    assert rule("melted") == ""
    assert failure("a", Finding(check="melted", status=Status.FAILED)).rows == ()


def test_every_check_has_a_page():
    """Without links, which lead nowhere in a terminal; a check of another package has its own words."""
    for name in CHECKS:
        page = check_page(name)
        assert page.startswith(f"# {name}\n")
        assert ".md)" not in page


def test_a_failure_without_numbers_says_what_it_saw_first():
    """The message of a JUnit failure, which has one line."""
    assert failure("", FAILED).summary == "measured 3, limit 2"
    assert failure("", replace(FAILED, measured=None, limit=None)).summary == "3 frozen tensors changed"
    assert failure("", Finding(check="odd", status=Status.FAILED)).summary == ""


def test_many_unjudged_checks_are_folded_and_the_page_has_all(tmp_path):
    """The first of one reason, and how many more."""
    made = report(row(PASSED, *unjudged(MOST_NAMES + 12, "no record"), outcome="inconclusive"))
    texts = rendered(made, tmp_path)

    assert "check_0, check_1, check_2, check_3, check_4 and 12 more" in texts["terminal"]
    assert r"check\_4 and 12 more: no record" in texts["summary"]
    for short in ("terminal", "summary"):
        assert "check_5" not in texts[short].replace("\\", "")
    for whole in ("page", "junit"):
        assert "check_16" in texts[whole]


def test_many_reasons_are_folded_too():
    """What is left is one group, which says where they are."""
    findings = [replace(MISSING, check=f"check_{at}", detail=f"reason {at}") for at in range(MOST_REASONS + 6)]
    view = run_view(row(*findings, outcome="inconclusive"))
    groups = view.folded(expected=False)

    assert len(view.unjudged) == MOST_REASONS + 6
    assert [group.reason for group in groups[:-1]] == ["reason 0", "reason 1", "reason 2"]
    assert groups[-1].reason == "7 other reasons, each in report.html"
    assert groups[-1].names == "check_3, check_4, check_5, check_6, check_7 and 2 more"
    assert view.folded(expected=True) == []


def test_where_a_run_says_why_nothing_was_judged_its_checks_are_one_group(tmp_path):
    """What has to be read is that reason, not what each of 49 checks lacks; the page has it all."""
    findings = [replace(MISSING, check=f"check_{at}", detail=f"reason {at}") for at in range(MOST_REASONS + 6)]
    refused = row(*findings, outcome="error", reason="data.max_length: should be at least 169")
    texts = rendered(report(refused), tmp_path)

    assert [len(group.checks) for group in run_view(refused).folded(expected=False)] == [MOST_REASONS + 6]
    assert texts["terminal"].count("reason") == 1
    assert "reason 7" in texts["page"]


def test_a_few_unjudged_checks_are_all_named():
    """Nothing is folded where there is room."""
    view = run_view(row(*unjudged(MOST_NAMES, "no record"), outcome="inconclusive"))

    assert [group.names for group in view.folded(expected=False)] == ["check_0, check_1, check_2, check_3, check_4"]
