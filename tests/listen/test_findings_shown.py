"""What `watched.findings` shows in the message of an assertion."""

from tunecheck.core.finding import Finding, Status
from tunecheck.listen.context import Findings


def test_findings_show_what_did_not_pass_and_count_the_rest():
    """As the README asserts: `assert watched.verdict == "pass", watched.findings`."""
    failed = Finding(check="loss_falls", status=Status.FAILED, measured=0.0, limit=0.1, detail="it rose")
    found = Findings([Finding(check="finite", status=Status.PASSED)] * 40 + [failed])

    assert repr(found) == f"{failed}\n40 passed, 1 failed"
    assert found[-1] == failed
