"""Does evaluation leave no trace?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from suite.check import Check
from suite.evidence import EvaluationAudit
from suite.finding import Finding
from suite.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationMode(Check):
    """Evaluation runs in eval mode without a graph, gives the same twice, and leaves mode, weights and memory alone."""

    meaning: ClassVar[str] = (
        "dropout active in evaluation, activations kept, or a model left in eval mode for the rest of training"
    )
    remedy: ClassVar[str] = "model.eval() and torch.no_grad() around it, and the former mode afterwards"

    def judge(self, trace: Trace) -> Finding:
        problems = []
        for audit in trace.all(EvaluationAudit):
            if audit.training_modules_during:
                problems.append(f"{audit.split}: {audit.training_modules_during} modules were in train mode")
            if audit.built_graph:
                problems.append(f"{audit.split}: gradients were enabled")
            if not audit.mode_restored:
                problems.append(f"{audit.split}: the modules' modes were not put back")
            if audit.kept_tensors > 0:
                problems.append(
                    f"{audit.split}: {audit.kept_tensors} tensors of an evaluation are still alive after it"
                )
            if audit.weights_changed:
                problems.append(f"{audit.split}: the trained weights are others after it")
            if not audit.repeats:
                problems.append(f"{audit.split}: its first batch has other logits when it is evaluated again")
        return self.found(
            not problems, "; ".join(problems) or "eval mode, no graph, equal twice, nothing kept or changed"
        )
