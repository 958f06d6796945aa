"""Has the trainer evaluate, and once looks at how it does it; has the model say what it was taught."""

import gc
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from tunecheck.core.evidence import Evaluation, EvaluationAudit, Generation
from tunecheck.core.frozen import Frozen
from tunecheck.probes.reference.forwards import FirstCall, IdsAndLabels, supervised_logits
from tunecheck.probes.reference.measures import Digest, digest, digests, live_tensors, significant_digits
from tunecheck.probes.reference.own_logits import OwnLogits
from tunecheck.training.data import IGNORED, Row, Tokens, encode, prompt_ids, prompt_text, read_rows
from tunecheck.training.events import Probe
from tunecheck.training.hooks import OwnHooks, tensors_of
from tunecheck.training.placement import where_evaluated
from tunecheck.training.restore import WIDENED_BYTES, in_fp32, model_mode, uncached, widened_bytes
from tunecheck.training.session import Session

PLAIN = Row("plain", "What is a string in Python?", "A string is a sequence of characters.")
"""A row that whatever has read English can tell: 1.4 nats per token of SmolLM2-135M, 1.6 of the two layers (bf16)."""
HIGH_SHARE = 0.5
"""Of ln V: a first loss above it may be the weights', the tokenizer's or the rows' own."""

EXTRA_TOKENS = 8
"""Tokens allowed beyond the expected answer: a model that does not stop must be seen not to stop."""
PROMPT_TOKENS = 30
"""Tokens to continue a plain prompt by."""
UNREADABLE = {"Cc", "Cn", "Co", "Cs"}
"""Unicode categories of what no text holds: controls, unassigned, private use, surrogates."""
TIE_ULPS = 4
"""Logits this close to the largest count as it, in units of its last place in the model's dtype: a cache and a plain
forward round otherwise, and in 16 bit untrained logits are so close that 2 of 30 tokens fell the other way (bf16, CPU).
"""


class EvaluationProbe(Probe[Evaluation | EvaluationAudit]):
    """Evaluates where the run says so; audits the last one, whose adapters are not zero."""

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
        scores = out if isinstance(out, torch.Tensor) else getattr(out, "logits", None)
        if scores is None:  # likelihoods per token, of a head that is fused with the loss and keeps no logits
            scores = next(held for held in out.values() if held.dim() > 1)
        self.first = self.first or digest(scores)
        self.digits.append(significant_digits(scores))


def _tensors(rows: Sequence[Tokens]) -> list[IdsAndLabels]:
    return [(torch.tensor(row.input_ids), torch.tensor(row.labels)) for row in rows]


def _again(session: Session, rows: Sequence[Tokens]) -> tuple[float, int]:
    """Mean negative log-likelihood and number of the supervised tokens, without masks and in fp64.

    Without dropout train mode is the same function, and what eval mode alone does shows as a difference.
    """
    total, tokens = 0.0, 0
    with model_mode(session.model, not session.run.uses_dropout), torch.no_grad():
        for logits, wanted in supervised_logits(session, _tensors(rows), torch.float64):
            total -= float((logits.gather(1, wanted[:, None])[:, 0] - logits.logsumexp(dim=-1)).sum())
            tokens += len(wanted)
    return total / tokens, tokens


class GenerationProbe(Probe[Generation]):
    """Generates with transformers' own generate, then holds the tokens against one plain forward."""

    def start(self, session: Session) -> None:
        self._generate(session, "start")

    def end(self, session: Session) -> None:
        self._generate(session, "end")

    def _generate(self, session: Session, when: str) -> None:
        if not (questions := _questions(session)):
            return
        with where_evaluated(session):
            answers = [_answer(session, question, when) for question in questions]
            differences: list[float | None] = [None] * len(questions)
            if session.precision != "fp32" and widened_bytes(session.model) <= WIDENED_BYTES:
                with in_fp32(session.model):  # in turn again: what is left of a prompt must not serve the same one
                    differences = [_decoded(session, question)[1] for question in questions]
            for answer, difference in zip(answers, differences, strict=True):
                self.emit(replace(answer, fp32_difference=difference))


class _Question(Frozen):
    prompt: str
    ids: list[int]
    new_tokens: int
    expected: str = ""
    as_trained: bool | None = None


def _questions(session: Session) -> list[_Question]:
    """The canary and a held-out instruction where the run generates, and its plain prompts."""
    run, tokenizer, rows = session.run, session.tokenizer, []
    if run.probes.generate:
        rows += [Row("canary", canary.instruction, canary.response)] if (canary := run.data.canary) else []
        rows += read_rows(run.data.file("heldout"), "heldout")[:1] if run.data.template != "blocks" else []
    first = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    plain = [
        _Question(prompt=prompt, ids=tokenizer(prompt)["input_ids"] or [first], new_tokens=PROMPT_TOKENS)
        for prompt in run.probes.prompts  # an empty one is continued from the start token, as transformers does
    ]
    return [*(_instruction(session, row) for row in rows), *plain]


def _instruction(session: Session, row: Row) -> _Question:
    tokenizer, template = session.tokenizer, session.run.data.template
    ids = prompt_ids(row.instruction, tokenizer, template)
    held = [tokens for tokens in (*session.batches.heldout, *session.batches.train) if tokens.key == row.key]
    supervised = [label != IGNORED for label in held[0].labels] if held else []
    return _Question(
        prompt=prompt_text(row.instruction, tokenizer, template),
        ids=ids,
        new_tokens=len(tokenizer(row.response, add_special_tokens=False)["input_ids"]) + EXTRA_TOKENS,
        expected=row.response if row.key == "canary" else "",
        as_trained=ids == list(held[0].input_ids[: supervised.index(True)]) if any(supervised) else None,
    )


def _decoded(session: Session, question: _Question) -> tuple[Any, float, torch.Tensor]:
    """Return what generate gives, its scores' difference from a plain forward's logits, relative, and the logits."""
    tokenizer, model = session.tokenizer, session.model
    ids = torch.tensor([question.ids], device=session.device)
    told = {"use_cache": True, "return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    with model_mode(model, False), torch.no_grad():
        output = _continued(model, ids, question.new_tokens, tokenizer.pad_token_id, tokenizer.eos_token_id, **told)
        logits = uncached(model, input_ids=output.sequences).logits[0, len(question.ids) - 1 : -1]
    difference = (torch.cat(output.scores).float() - logits.float()).abs().max() / logits.float().abs().max()
    return output, float(difference), logits


def _answer(session: Session, question: _Question, when: str) -> Generation:
    tokenizer, model = session.tokenizer, session.model
    output, difference, logits = _decoded(session, question)
    whole, chosen_by = output.sequences, torch.cat(output.scores).float()
    given, answer = whole[:, : len(question.ids)], whole[0, len(question.ids) :]
    with model_mode(model, False), torch.no_grad():  # its first token is now the end
        ended_at_once = _continued(model, given, 2, int(answer[0]), int(answer[0]))
    tie = TIE_ULPS * torch.finfo(logits.dtype).eps * float(logits.abs().max())
    logits = logits.float()
    chosen = logits.gather(1, answer[:, None])[:, 0]
    text = tokenizer.decode(answer, skip_special_tokens=True)
    broken = sum(c == "\ufffd" or (unicodedata.category(c) in UNREADABLE and not c.isspace()) for c in text)
    return Generation(
        when=when,
        prompt=question.prompt,
        expected=question.expected,
        text=text,
        ended=bool((answer == tokenizer.eos_token_id).any()),
        prompt_as_trained=question.as_trained,
        not_largest=int((chosen_by.gather(1, answer[:, None])[:, 0] < chosen_by.amax(dim=-1)).sum()),
        stops=ended_at_once.shape[1] == given.shape[1] + 1,
        scores_changed=int((chosen_by != torch.cat(output.logits).float()).any(dim=-1).sum()),
        greedy_agreement=float((chosen >= logits.amax(dim=-1) - tie).float().mean()),
        logit_difference=difference,
        mean_logprob=float(logits.log_softmax(dim=-1).gather(1, answer[:, None]).mean()),
        tokens=len(answer),
        most_frequent_share=int(answer.unique(return_counts=True)[1].max()) / len(answer),
        readable_share=1 - broken / len(text) if text else 1.0,
    )


def _continued(model: Any, ids: torch.Tensor, new_tokens: int, pad: int, end: int, **told: Any) -> Any:
    """Return what transformers' own generate makes of these tokens, always the likeliest next one."""
    limits = {"max_new_tokens": new_tokens, "do_sample": False, "pad_token_id": pad, "eos_token_id": end}
    return model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **limits, **told)
