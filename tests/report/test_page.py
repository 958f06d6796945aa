"""report.html: one page that needs nothing else, says everything that failed, and believes no text."""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
import subprocess
import sys
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest
from html_page import MOST_BYTES, Page
from metered import metered
from report_rows import other
from sessions import leaking, session, write_trace
from traces import adding, blank, healthy, opened, with_record, with_run, without

from tunecheck.checks import CHECKS
from tunecheck.cli import main
from tunecheck.core import evidence as e
from tunecheck.core.errors import TraceError
from tunecheck.core.finding import Finding, Status
from tunecheck.core.text import human_number
from tunecheck.core.trace import Trace
from tunecheck.report.page import PAGE_FILE, page_html, template
from tunecheck.report.page.chart import (
    MOST_ROWS,
    Chart,
    Series,
    figure,
    labelled,
    thinned,
    ticks,
)
from tunecheck.report.page.series import charts
from tunecheck.results.rejudge import session_report
from tunecheck.results.stored import write_verdict
from tunecheck.session import written

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def ill() -> Trace:
    """A run whose loss does not fall enough."""
    return with_run(healthy(), checks={"loss_falls": {"min_fall": 0.5}})


def svg(chart: Chart, most_points: int) -> str:
    """The drawing of a chart."""
    return template("chart.html.jinja").module.svg(chart, most_points)


def page_of(folder: Path, *traces: Trace, **fields) -> Page:
    """The parsed page of a session with these traces."""
    return Page(page_html(session(folder, *traces, **fields), folder))


def test_every_failed_finding_is_told_in_full(tmp_path):
    """With its numbers before the first curve; one that no other explains also with meaning and remedy."""
    made = session(tmp_path, leaking(), ill())
    html = page_html(made, tmp_path)
    page = Page(html[: html.index("<svg")] + "</ul></figcaption></figure></div></section></main></body></html>")
    failed = [finding for run in made.runs for finding in run.failed]

    assert {"loss_falls", "memory_flat", "vram_ceiling"} <= {finding.check for finding in failed}
    for finding in failed:
        assert finding.check in page.text
        if finding.because:  # named there, with its numbers
            continue
        for text in (finding.check, finding.detail, finding.meaning, finding.remedy):
            assert " ".join(text.split()) in page.text
        if finding.measured is not None:
            assert f"measured {human_number(finding.measured)}, limit {human_number(finding.limit)}" in page.text


def test_the_verdict_comes_first(tmp_path):
    """Before anything else that a person reads, and in the title of the window."""
    page = page_of(tmp_path, ill())

    assert page.text.startswith("FAIL: tunecheck, 2026-11-21")
    assert re.search(r"tunecheck [\d.]+ FAIL \d+ checks passed, 1 failed", page.text)


def test_every_chart_has_title_description_and_table(tmp_path):
    """Nobody has to see a curve to know what it says."""
    page = page_of(tmp_path, leaking(), healthy())
    drawings = [attributes for attributes in page.named("svg") if attributes.get("role") == "img"]

    assert len(drawings) == len(page.named("title")) - 1 == len(page.named("desc")) == len(page.named("figure"))
    assert len(drawings) == 4 + 2 + 5
    assert sum(attributes.get("class") == "figures" for attributes in page.named("table")) == len(drawings)
    assert all(
        attributes.get("aria-hidden") == "true" for attributes in page.named("svg") if attributes not in drawings
    )


def test_ids_are_unique_and_links_lead_somewhere(tmp_path):
    """Within the page, or to a file beside it."""
    page = page_of(tmp_path, leaking(), healthy(), ill())
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    links = {attributes["href"] for attributes in page.named("a")}

    assert len(ids) == len(set(ids))
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert all((tmp_path / link).is_file() for link in links if not link.startswith("#"))


def test_the_page_asks_nobody_for_anything(tmp_path):
    """No address, no file that it would load, one script of its own; a browser is told to refuse all others."""
    html = page_html(session(tmp_path, leaking(), healthy()), tmp_path)
    page = Page(html)

    assert not re.search(r"""(?:src|href|url|action)\s*[=(]\s*["']?\s*(?:https?:)?//""", html)
    assert not {"link", "img", "iframe", "object", "embed", "base"} & {tag for tag, _ in page.elements}
    assert page.named("script") == [{}]
    assert not [form for form in page.named("form") if "action" in form]
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    (policy,) = (meta["content"] for meta in page.named("meta") if "http-equiv" in meta)
    script = re.search(r"<script>(.*?)</script>", html, re.S)[1]
    digest = b64encode(sha256(script.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def test_the_page_is_balanced_html(tmp_path):
    """Every element that must be closed is, in order."""
    page = page_of(tmp_path, leaking(), healthy(), also=(other("skipped", "full/big", "needs 24 GiB"),))

    assert page.unbalanced == []
    assert page.open == []


def test_generated_text_is_only_text(tmp_path):
    """Whatever a model says, a check repeats, or a file is called: no markup, no control characters."""
    nasty = "</dd><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202e&amp;"
    trace = with_record(healthy(), e.Generation, text=nasty, prompt=nasty)
    trace = with_run(trace, id='x"onload="y', model={"name": nasty})
    bad = Finding(check="<b>", status=Status.FAILED, measured=nasty, limit=nasty, detail=nasty, meaning=nasty)
    made = session(tmp_path, trace)
    made = dataclasses.replace(
        made, command=nasty, environment={nasty: nasty}, runs=(dataclasses.replace(made.runs[0], findings=(bad,)),)
    )
    html = page_html(made, tmp_path)
    page = Page(html)

    assert not {"img", "b"} & {tag for tag, _ in page.elements}
    assert page.named("script") == [{}]
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert page.text.count("<script>alert(1)</script>") >= 8
    assert "\x1b" not in html
    assert "\u202e" not in html


def test_names_of_curves_are_only_text(tmp_path):
    """They come from a trace, which anybody may have written: in the drawing, in its legend, in its table."""
    nasty = "</desc><script>\x1b[31m{0}"
    trace = with_record(healthy(), e.Gradients, norms={nasty: 1.0, "lora_A": 1.0})
    chart = next(chart for chart in charts(trace, []) if chart.title == "Gradient norms")
    html = page_html(session(tmp_path, trace), tmp_path)

    for drawn in (str(svg(chart, 200)), html):
        assert "<script>" not in drawn.partition("</main>")[0]
        assert "\x1b" not in drawn
        assert "&lt;script&gt;{0}" in drawn
    assert '<li class="s0">&lt;/desc&gt;&lt;script&gt;{0}' in html


def test_endless_text_is_cut(tmp_path):
    """And says how long it was."""
    page = page_of(tmp_path, with_record(healthy(), e.Generation, text="la " * 50_000))

    assert "… (149,999 characters)" in page.text
    assert len(page.text) < 100_000


def test_what_failures_of_several_runs_share_is_told_once(tmp_path):
    """Rule, causes and remedy stand at the first; the second has its own numbers, and says where the rest is."""
    html = page_html(
        session(tmp_path, ill(), with_run(ill(), id="second", checks={"loss_falls": {"min_fall": 0.6}})), tmp_path
    )
    first, second = re.findall(r"<article.*?</article>", html, re.S)
    remedy = CHECKS["loss_falls"].remedy

    assert html.count(remedy) == first.count(remedy) == 1
    assert "The rest is as in" in second
    assert "limit 0.5" in first
    assert "limit 0.6" in second
    assert "The rest is as in" not in first


def test_ten_long_runs_stay_small(tmp_path):
    """Of a thousand steps each, on a card, with a failure in each."""
    assert len(page_html(session(tmp_path, *[leaking(1000)] * 10), tmp_path).encode()) < MOST_BYTES


def test_a_run_on_a_card_shows_its_memory_by_kind_and_its_ceiling(tmp_path):
    """Seen from outside and by the allocator."""
    made = session(tmp_path, leaking())
    shown = {chart.title: chart for chart in charts(leaking(), made.runs[0].findings)}
    memory = shown["GPU memory"]

    assert [series.name for series in memory.series] == [
        "whole GPU",
        "training process on the GPU",
        "reserved by the allocator",
        "live tensors, peak",
    ]
    assert [*memory.limits.values()] == [pytest.approx(1000 / 1024)]
    assert memory.unit == "GiB"
    assert memory.series[0].points[0] == (5.0, 2600 / 1024)
    assert shown["Memory after each step"].series[0].points[-1][1] > 890


def test_a_page_begins_with_what_was_judged(tmp_path):
    """By subject, before the first curve; every check is there, with what it found."""
    html = page_html(session(tmp_path, healthy()), tmp_path)
    page = Page(html)
    checks = session(tmp_path, healthy()).runs[0].findings

    assert page.text.index("Why it passes") < page.text.index("Rows as the model got them")
    assert html.index("Why it passes") < html.index("<svg")
    listed = re.findall(r"<li[^>]*><em class=\"(\w+)\">\1</em> <strong>(\w+)</strong>", html)
    assert sorted(listed) == sorted((finding.status.value, finding.check) for finding in checks)


def test_a_failure_links_to_its_curve_and_its_place_among_all_checks(tmp_path):
    """And one about rows to the rows."""
    moved = Finding(check="labels_as_configured", status=Status.FAILED, detail="moved")
    made = session(tmp_path, ill())
    run = dataclasses.replace(made.runs[0], findings=(*made.runs[0].findings, moved))
    html = page_html(dataclasses.replace(made, runs=(run,)), tmp_path)

    assert '<a href="#run-1-curves1">curve: Loss</a><a href="#run-1-loss_falls">among all checks</a>' in html
    assert '<a href="#run-1-rows">its rows</a><a href="#run-1-labels_as_configured">' in html


@pytest.mark.parametrize(
    ("trace", "unit"),
    [
        (healthy(), "nats per supervised token"),
        (with_run(healthy(), premises=opened({"causal_lm": "a classifier"})), "as the training computes it"),
        (with_run(healthy(), premises=opened({"token_mean_loss": "a weighted loss"})), "as the training computes it"),
    ],
)
def test_the_loss_has_a_unit_only_where_it_is_known(trace, unit):
    """A classifier's has none per token."""
    assert charts(trace, [])[0].unit == unit


def test_a_chart_explains_no_curve_that_it_lacks():
    """Without a probe batch nothing is said of one."""
    assert "probe batch" in charts(healthy(), [])[0].note
    assert charts(without(healthy(), e.Evaluation), [])[0].note == ""


def test_the_limit_of_the_loss_is_drawn_where_a_check_gives_one():
    """On the scale of the probe batch that it is about; not where nobody asks or its evidence is missing."""
    fall = Finding(check="loss_falls", status=Status.PASSED, measured=0.2, limit=0.25)
    probe = [found.loss for found in healthy().all(e.Evaluation) if found.split == "probe"]

    assert [*charts(healthy(), [fall])[0].limits.values()] == [pytest.approx(0.75 * probe[0])]
    assert charts(healthy(), [])[0].limits == {}
    assert charts(with_record(healthy(), e.Evaluation, loss=math.nan), [fall])[0].limits == {}


def test_gradient_norms_of_a_and_b_are_apart():
    """Beside the norm that the trainer reports."""
    norms = next(chart for chart in charts(healthy(), []) if chart.title == "Gradient norms")

    assert [series.name for series in norms.series] == ["A", "B", "as reported"]
    assert norms.series[0].points[:2] == ((0, 0.0), (1, 0.0))


def test_values_that_are_not_finite_break_the_curve_and_are_marked():
    """In the drawing, in the words and in the table."""
    chart = made_chart([(0, 1.0), (1, math.nan), (2, math.inf), (3, 2.0)])
    drawn = str(svg(chart, 200))

    assert 'class="broken"' in drawn
    assert drawn.count("M", drawn.index('class="s0"'), drawn.index("dot")) == 2
    assert "2 not finite" in chart.words()
    assert [row[1] for row in chart.rows()] == ["1", "nan", "inf", "2"]


@pytest.mark.parametrize(
    "points",
    [[(0, math.nan)], [(5, 3.0)], [(0, 0.0), (1, 0.0)], [(0, 1e300), (1, -1e300)], [(0, -2.5), (1, -2.5)]],
)
def test_odd_curves_are_drawn_within_the_frame(points):
    """A single point, a constant, nothing finite, a huge span."""
    drawn = str(svg(made_chart(points), 200))
    numbers = [float(number) for number in re.findall(r"[ML]?(-?\d+) (-?\d+)", drawn) for number in number]

    assert "nan" not in drawn.partition("</desc>")[2]
    assert all(-500 <= number <= 500 for number in numbers)


def test_thinning_keeps_every_spike_and_every_break():
    """A mean would hide them."""
    points = [(step, 1.0) for step in range(5000)]
    points[1234] = (1234, 9.0)
    points[4321] = (4321, math.nan)
    kept = thinned(points, 100)

    assert (1234, 9.0) in kept
    assert any(math.isnan(y) for _, y in kept)
    assert len(kept) <= 101
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)
    assert thinned(points[:50], 100) == points[:50]


def test_a_long_table_says_that_it_is_not_all(tmp_path):
    """Both ends are kept."""
    chart = made_chart([(step, float(step)) for step in range(1000)])
    rows = chart.rows()

    assert (rows[0][0], rows[-1][0], len(rows)) == ("0", "999", MOST_ROWS)
    assert "all of them are in run-0.jsonl" in page_of(tmp_path, metered()).text
    assert "all of them are in" not in page_of(tmp_path, healthy()).text


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (0, 100, [0, 20, 40, 60, 80, 100]), (3.1, 4.6, [3.5, 4, 4.5]), (2, 2, [2])],
)
def test_ticks_are_round_numbers(low, high, expected):
    """Few of them, inside the span."""
    assert ticks(low, high) == expected


def test_ticks_of_counted_things_are_whole():
    """There is no step 3.2."""
    assert ticks(3, 4, whole=True) == [3, 4]
    assert ticks(0, 100, whole=True) == ticks(0, 100)


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ([0, 0.0005, 0.001], ["0", "0.0005", "0.001"]),
        ([0, 5e-5, 1e-4], ["0", "5e-5", "1e-4"]),
        ([32.656, 32.657], ["32.656", "32.657"]),
        ([0, 5000], ["0", "5000"]),
        ([0, 2e6], ["0", "2,000,000"]),
    ],
)
def test_the_marks_of_an_axis_are_told_apart_in_one_notation(marks, expected):
    """Four digits each would call two of them the same."""
    assert [words for _, words in labelled(marks)] == expected


def test_what_hardly_moves_is_drawn_level():
    """As steep as a real change it would mislead, and its marks would not fit."""
    chart = made_chart([(0, 1000.0), (1, 1000.01)])

    assert chart.title in svg(chart, 100)
    assert 'd="M64 97l396 0"' in svg(chart, 100)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, "0"), (12345.0, "12345"), (0.0001234, "1.234e-4"), (1234.5, "1,234"), (2.5, "2.5"), (-3e12, "-3e12")],
)
def test_figures_are_short(value, expected):
    """Four digits are enough for an axis."""
    assert figure(value) == expected


def test_a_limit_is_in_the_frame_and_in_words():
    """Also when the curve is far from it."""
    chart = dataclasses.replace(made_chart([(0, 1.0), (1, 2.0)]), limits={"ceiling": 10.0})
    drawn = str(svg(chart, 200))
    place = int(re.search(r'class="limit" d="M64 (\d+)H', drawn)[1])

    assert 10 <= place <= 30
    assert "ceiling: 10" in chart.words()


def test_runs_without_a_trace_are_told(tmp_path):
    """Skipped, and not begun: with their reasons, without curves."""
    also = (other("skipped", "full/big", "needs 24 GiB"), other("error", "quick/bad", "no such model"))
    page = page_of(tmp_path, also=also)

    assert "needs 24 GiB" in page.text
    assert "no such model" in page.text
    assert page.named("figure") == []


def test_a_session_without_runs_has_an_honest_page(tmp_path):
    """Nothing was judged, and it says so."""
    page = page_of(tmp_path, interrupted=True)

    assert "No run was made." in page.text
    assert "INCONCLUSIVE" in page.text
    assert "The session ended before its work was done" in page.text


def test_a_trace_that_cannot_be_read_costs_its_curves_alone(tmp_path):
    """The run's verdict is shown, and why there are no curves."""
    made = session(tmp_path, ill())
    (tmp_path / "run-0.jsonl").write_text('{"kind": "RunHeader", "schema": 99}\n')
    page = Page(page_html(made, tmp_path))

    assert "trace schema 99" in page.text
    assert "loss_falls" in page.text
    assert page.named("figure") == []


def test_unfinished_attempts_and_repeats_are_told(tmp_path):
    """What ran out of memory, where, and what was done then."""
    trace = healthy()
    first = trace.attempts[0]
    start = dataclasses.replace(first.start, device="cuda:0", card="GPU-1")
    end = e.AttemptEnd(outcome="out_of_memory", detail="CUDA out of memory", seconds=4.0)
    again = dataclasses.replace(first.start, reason=e.AttemptReason.OUT_OF_MEMORY)
    attempts = (dataclasses.replace(first, start=start, records=(), end=end), dataclasses.replace(first, start=again))
    page = page_of(tmp_path, Trace(trace.header, attempts))

    assert "ran out of memory on cuda:0, repeated on cpu" in page.text
    assert "ran out of memory: CUDA out of memory" in page.text
    assert "cuda:0 (GPU-1)" in page.text


def test_text_before_and_after_stands_side_by_side(tmp_path):
    """With the answer that was trained; silence is called by its name."""
    page = page_of(tmp_path, with_record(healthy(), e.Generation, 0, text=" \n"))

    assert "trained answer Seven copper herons wait for the violet tide." in page.text
    assert "before nothing after Seven copper herons wait for the violet tide." in page.text


def test_empty_columns_are_left_out(tmp_path):
    """On a CPU no allocator counts, and on a card it does."""
    assert "phase time resident load" in page_of(tmp_path, healthy()).text
    assert "phase time live tensors reserved whole GPU resident load" in page_of(tmp_path, metered()).text


def test_what_the_evidence_cost_is_told(tmp_path):
    """The dearest probe first, in seconds and beside the steps; what costs next to nothing is left out."""
    text = page_of(tmp_path, healthy()).text

    assert "OracleProbe 2.50 s 25.0% UpdateProbe 0.25 s 2.5% all probes 2.75 s 27.5%" in text
    assert "GradientProbe" not in text


def test_where_it_came_from_is_told(tmp_path):
    """Weights, data, numeric modes, settings, machine."""
    trace = adding(healthy(), blank(e.DataSplit, dataset="facts", dataset_sha256="cd" * 32))
    text = page_of(tmp_path, trace).text

    for words in ("weights.sha256 abab", "data.sha256 cdcd", "setup.attention sdpa", "training.max_steps 6", "made up"):
        assert words in text


def test_a_header_without_a_model_has_a_page(tmp_path, capsys):
    """A damaged trace shows what is left of it."""
    trace = healthy()
    rest = {key: value for key, value in trace.header.run.items() if key != "model"}
    header = dataclasses.replace(trace.header, run=rest)

    write_trace(tmp_path / "trace.jsonl", dataclasses.replace(trace, header=header))

    assert main(["page", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""
    assert "training.max_steps 6" in Page((tmp_path / PAGE_FILE).read_text(encoding="utf-8")).text


def test_a_killed_session_is_judged_from_its_traces(tmp_path):
    """It wrote no verdict; the report is that of an interrupted one."""
    session(tmp_path, ill())
    (tmp_path / "quick-broken.jsonl").write_text("nonsense\n")
    made = session_report(tmp_path)

    assert made.interrupted
    assert made.verdict == "fail"
    assert [run.outcome for run in made.runs] == ["error", "fail"]
    assert [finding.check for finding in made.runs[1].failed] == ["loss_falls"]


def test_the_command_writes_the_page_again(tmp_path, capsys):
    """From the verdict and the traces alone, the same to the last character."""
    made = session(tmp_path, ill())
    write_verdict(made, tmp_path)
    before = page_html(made, tmp_path)

    assert main(["page", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / PAGE_FILE}\n"
    assert (tmp_path / PAGE_FILE).read_text(encoding="utf-8") == before


def test_the_command_names_the_folder_that_is_no_session(tmp_path, capsys):
    """And what one looks like."""
    assert main(["page", str(tmp_path)]) == 4
    assert "holds neither verdict.json nor a trace" in capsys.readouterr().err
    with pytest.raises(TraceError, match="name the folder of a session"):
        session_report(tmp_path / "missing")


def test_a_page_that_fails_costs_no_verdict(tmp_path, monkeypatch, caplog):
    """Whatever the reason: the other files are there, and the way to try again is told."""
    made = session(tmp_path, healthy())
    monkeypatch.setattr("tunecheck.report.page._run", lambda *_: 1 / 0)
    written(made, tmp_path)

    assert {"verdict.json", "junit.xml", "summary.md"} <= {path.name for path in tmp_path.iterdir()}
    assert not (tmp_path / PAGE_FILE).exists()
    assert "no report.html (ZeroDivisionError" in caplog.text


def test_a_session_writes_its_page(tmp_path):
    """Beside the verdict."""
    written(session(tmp_path, healthy()), tmp_path)

    assert (tmp_path / PAGE_FILE).read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_page_needs_no_torch():
    """It is written when the training is over."""
    code = "import sys, tunecheck.report.page, tunecheck.results.rejudge; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_a_browser_loads_it_without_an_error_or_a_request(tmp_path):
    """Headless; its log would tell of a refused request or of broken markup. Its script opens what a link leads to."""
    (tmp_path / PAGE_FILE).write_text(page_html(session(tmp_path, leaking(), ill()), tmp_path), encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    address = f"{(tmp_path / PAGE_FILE).as_uri()}#run-2-loss_falls"
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    done = subprocess.run([*command, profile, address], capture_output=True, text=True, timeout=120)

    assert done.returncode == 0
    assert "CONSOLE" not in done.stderr
    page = Page(done.stdout)
    assert page.text.count("Failed") >= 3
    assert ["hidden" in form for form in page.named("form")] == [False]
    assert sum("open" in details for details in page.named("details") if details.get("class") == "subject") == 1


def made_chart(points) -> Chart:
    """One curve."""
    return Chart(title="T", x_name="x", unit="u", series=(Series(name="curve", points=tuple(points)),))
