"""Has the trainer evaluate, and once looks at how it does it."""

import gc
import math
from collections.abc import Sequence
from typing import Any

import torch

from tunecheck.core.evidence import Evaluation, EvaluationAudit
from tunecheck.probes.reference.forwards import FirstCall, IdsAndLabels, supervised_logits
from tunecheck.probes.reference.measures import Digest, digest, digests, live_tensors, significant_digits
from tunecheck.probes.reference.own_logits import OwnLogits
from tunecheck.training.data import IGNORED, Row, Tokens, encode
from tunecheck.training.events import Probe
from tunecheck.training.hooks import OwnHooks, tensors_of
from tunecheck.training.placement import where_evaluated
from tunecheck.training.restore import model_mode
from tunecheck.training.session import Session

PLAIN = Row("plain", "What is a string in Python?", "A string is a sequence of characters.")
"""A row that whatever has read English can tell: 1.4 nats per token of SmolLM2-135M, 1.6 of the two layers (bf16)."""
HIGH_SHARE = 0.5
"""Of ln V: a first loss above it may be the weights', the tokenizer's or the rows' own."""


class EvaluationProbe(Probe):
    """Evaluates where the run says so; audits the last one, whose adapters are not zero."""

    emits = (Evaluation, EvaluationAudit)
    runs_evaluations = True

    def evaluate(self, session: Session, step: int) -> None:
        """Record the trainer's own evaluation of every split; the modes of the modules are the trainer's matter."""
        with where_evaluated(session):
            self._evaluate(session, step)

    def _evaluate(self, session: Session, step: int) -> None:
        size, exchange = session.run.evaluation.batch_size, session.exchange
        uniform = math.log(session.run.model.architecture.vocab_size)
        for split in session.run.evaluation.splits:
            rows = session.batches.fixed(split)
            modes = [module.training for module in session.model.modules()]
            with OwnHooks() as hooks:
                seen = _Seen(session.model, hooks)
                call = FirstCall(session.model, hooks)
                own = OwnLogits(session.model, _tensors(rows), hooks)
                loss, tokens = _evaluated(session, rows, size)
            own.close()
            restored = modes == [module.training for module in session.model.modules()]
            offloaded = session.run.training.offload == "parameters"  # a decoder alone would not gather them
            plain = None
            if step == 0 and loss > HIGH_SHARE * uniform:  # right weights know the plain row, whatever the others hold
                template = "alpaca" if session.run.data.template == "blocks" else session.run.data.template
                plain = _again(session, [encode(PLAIN, session.tokenizer, template)])[0]
            reported = Evaluation(
                step=step,
                split=split,
                loss=loss,
                tokens=tokens,
                logits_loss=own.loss_of(exchange),
                # before the first step a stand-in for the model has its weights, and noise is seen in the last one
                model_repeats=None if offloaded or step == 0 else call.repeats(session.model),
                plain_loss=plain,
            )
            self.emit(reported)
            if step != session.run.training.max_steps:
                continue
            before, alive = digests(tensors_of(session.optimizer)), _alive(session)
            with OwnHooks() as hooks:
                again = _Seen(session.model, hooks)
                _evaluated(session, rows[: size * exchange.count], size)
            kept, changed = _alive(session) - alive, digests(tensors_of(session.optimizer)) != before
            oracle_loss, oracle_tokens = _again(session, rows)
            batches = [rows[at : at + size] for at in range(0, len(rows), size)]
            audit = EvaluationAudit(
                split=split,
                reported_loss=loss,
                reported_tokens=tokens,
                repeats=seen.first is not None and seen.first == again.first,
                oracle_loss=oracle_loss,
                oracle_tokens=oracle_tokens,
                logit_digits=min(seen.digits, default=0),
                training_modules_during=max((training for training, _ in seen.forwards), default=-1),
                mode_restored=restored,
                built_graph=any(gradients for _, gradients in seen.forwards),
                kept_tensors=kept,
                weights_changed=changed,
                batch_tokens=tuple(sum(n != IGNORED for row in batch for n in row.labels[1:]) for batch in batches),
            )
            self.emit(audit)


def _evaluated(session: Session, rows: Sequence[Tokens], size: int) -> tuple[float, int]:
    """Return what the trainer's own evaluation does, of the model as it is trained."""
    with session.as_trained():
        return session.evaluate(session, rows, size)


def _alive(session: Session) -> int:
    """Tensors that Python reaches, those of a finished evaluation's cycles not counted."""
    gc.collect()
    return live_tensors(session.device.type)[0]


class _Seen:
    """The forwards of an evaluation, and the logits on their way to its loss, until the hooks are removed."""

    def __init__(self, model: Any, hooks: OwnHooks) -> None:
        self.forwards: list[tuple[int, bool]] = []
        """Of each: how many modules were in train mode, and whether gradients were enabled."""
        self.first: Digest | None = None
        """Of the first logits."""
        self.digits: list[int] = []
        """Of each tensor: how many binary digits its numbers have."""
        self._modules = [*model.modules()]
        hooks.before(model.get_decoder(), self._called)
        # the head for a loss in chunks, which does not call the model; the model for what comes after the head
        for part in (model.get_output_embeddings(), model):
            hooks.after(part, self._look)

    def _called(self, *_: object) -> None:
        self.forwards.append((sum(module.training for module in self._modules), torch.is_grad_enabled()))

    def _look(self, _module: object, _args: object, out: Any) -> None:
        scores = _scores(out)
        self.first = self.first or digest(scores)
        self.digits.append(significant_digits(scores))


def _scores(out: Any) -> torch.Tensor:
    """Return the logits, or the likelihoods per token of a head that is fused with the loss and keeps no logits."""
    if isinstance(out, torch.Tensor):
        return out
    logits: torch.Tensor | None = getattr(out, "logits", None)
    return logits if logits is not None else next(held for held in out.values() if held.dim() > 1)


def _tensors(rows: Sequence[Tokens]) -> list[IdsAndLabels]:
    return [(torch.tensor(row.input_ids), torch.tensor(row.labels)) for row in rows]


def _again(session: Session, rows: Sequence[Tokens]) -> tuple[float, int]:
    """Mean negative log-likelihood and number of the supervised tokens, without masks and in fp64.

    Without dropout train mode is the same function, and what eval mode alone does shows as a difference.
    """
    total, tokens = 0.0, 0
    with model_mode(session.model, not session.run.uses_dropout), torch.no_grad():
        for logits, wanted in supervised_logits(session, _tensors(rows), torch.float64):
            chosen = logits.gather(1, wanted[:, None])[:, 0] - logits.logsumexp(dim=-1)
            total -= float(chosen.sum())
            tokens += len(wanted)
    return total / tokens, tokens
