"""What a training that is not ours leaves behind: whether its files hold what was learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tunecheck.core.check import Check, some
from tunecheck.core.evidence import Merged, ReadBack, Written
from tunecheck.core.finding import Finding
from tunecheck.core.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedAsTrained(Check):
    """What the script saves holds trained tensors as the training has left them, not as they were before it.

    The model's own save_pretrained writes tensors, and none of those that have moved with its first values; what else
    is written may be a copy of the model from before, the base without its adapters, or an adapter that rests, as long
    as something of what was learned is written, too.
    """

    applies_to: ClassVar[frozenset[str]] = frozenset({"watched"})
    meaning: ClassVar[str] = (
        "an adapter is saved empty, since its state dict was filtered twice; or what is saved was taken before the "
        "training: a state dict that is not read anew, an average that is never updated; or adapters were taken off "
        "(unload) rather than merged, and the base is saved alone; or an adapter is saved that was added and never "
        "made the active one, so that another was trained"
    )
    remedy: ClassVar[str] = (
        "save the model without a state_dict of your own, or take it after the training; merge_and_unload keeps what "
        "was learned; call set_adapter before the training; compare the file with model.state_dict()"
    )

    def judge(self, trace: Trace) -> Finding:
        seen = [written for attempt in trace.attempts for written in attempt.all(Written)]
        if not seen:
            return self.unjudged("nothing of what is trained was saved after the first step", expected=True)
        own = [written for written in seen if written.own]
        problems = ["the model's own save_pretrained wrote no tensors"] if any(not w.tensors for w in own) else []
        stale = [w for w in own if w.earlier]
        if not stale and not any(w.trained or w.other for w in seen):
            stale = [w for w in seen if w.earlier]
        problems += [f"{len(w.earlier)} tensors are as before the training: {some(w.earlier)}" for w in stale[-1:]]
        if (base := max(w.without_adapters for w in seen)) and not any(w.trained or w.other for w in seen):
            problems.append(
                f"{base} weights are saved as they were under the adapters, and nothing of what those learned"
            )
        merged = any(attempt.all(Merged) or attempt.all(ReadBack) for attempt in trace.attempts)
        if not merged and not any(w.trained or w.other > w.resting for w in seen):
            resting = max((w.resting for w in own), default=0)
            if resting:
                problems.append(f"{resting} tensors are of an adapter that was not trained, and none of what was")
        detail = "; ".join(problems) or f"as many as {max(w.trained for w in seen)} trained tensors in a file"
        return self.found(not problems, detail, measured=len(problems), limit=0)
