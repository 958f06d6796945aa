"""A fleet's page and its words in the terminal."""

from __future__ import annotations

import io
import time
from dataclasses import replace

from fleets import BROKEN, RUN, answer, judged, row_of, silent
from html_page import Page
from rich.console import Console

from tunecheck.core.finding import Finding, Status
from tunecheck.report.fleet import fleet_headline, fleet_html, print_fleet, said_of

WRONG = {**RUN.numbers, "loss of step": (4.5, 4.25, 4.25)}
SLOW = {**RUN.figures, "tokens_per_second": 800.0}


def fleet(nodes=64):
    """A fleet with three sick nodes: one wrong, one slow, one gone."""
    healthy = [answer(number) for number in range(3, nodes)]
    gone = silent("n2", "the node failed <while> the job ran", gone=True)
    return judged(answer(0, numbers=WRONG), answer(1, figures=SLOW), *healthy, gone)


def test_the_page_names_the_odd_ones_first_and_links_the_others():
    """Valid, without a request, all data escaped."""
    html = fleet_html(fleet())
    page = Page(html)

    assert not page.unbalanced
    assert page.text.index("n0") < page.text.index("n2") < page.text.index("n63")
    assert "nodes_agree" in page.text
    assert "&lt;while&gt;" in html
    assert {link["href"] for link in page.named("a")} == {
        f"nodes/n{number}/20261122T120000Z-7/report.html" for number in range(64) if number != 2
    }
    assert "n0,n1,n2" in page.text
    assert "src=" not in html
    assert "<script" not in html


def test_a_page_of_many_stays_small():
    """Of ten thousand it has less than 2 MB: names and links of the healthy ones are about a hundred bytes each."""
    few, many = len(fleet_html(fleet(1000))), len(fleet_html(fleet(2000)))

    assert (many - few) / 1000 < 150


def test_the_terminal_ends_with_the_verdict():
    """And shows what is odd, with what to do."""
    printed = io.StringIO()
    print_fleet(fleet(), Console(file=printed, width=100))
    lines = printed.getvalue().strip().splitlines()

    assert lines[-1] == f"verdict: {fleet_headline(fleet())}"
    assert lines[-1] == "verdict: FAIL — 64 places on 64 nodes: 61 pass, 2 fail, 1 no answer; 3 nodes to drain"
    assert "take it out of service" in printed.getvalue()


def test_own_failures_are_columns_of_the_matrix():
    """And a fleet without any place is a page too."""
    report = judged(*(answer(number) for number in range(4)), answer(4, status=1, outcome="fail", failed=(BROKEN,)))

    assert '<th scope="col">loss_oracle' in fleet_html(report)
    assert "No place was asked" in Page(fleet_html(judged())).text


def test_the_reason_of_a_training_that_ended_early_is_not_hidden():
    """By the checks that it left without records."""
    lacks = tuple(Finding(check=f"c{n}", status=Status.UNJUDGED, detail=f"no R{n} record") for n in range(24))
    one = answer(4, status=6, outcome="error", reason="the training crashed: ValueError", unjudged=lacks, numbers={})
    row = row_of(judged(answer(0), one), "n4")

    assert said_of(row)[0] == ("reason", "quick/tiny: the training crashed: ValueError")
    assert not any("record" in words for _, words in said_of(row))


def test_the_page_has_the_age_of_each_answer():
    """An old one says less."""
    old = replace(answer(0), ended_at=time.time() - 7200)

    assert "2 h 00 min" in Page(fleet_html(judged(old, answer(1)))).text
