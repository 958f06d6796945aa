"""Greedy continuations before and after training: can the model say what it was taught?"""

import unicodedata
from dataclasses import replace
from typing import Any

import torch

from tunecheck.core.evidence import Generation
from tunecheck.core.frozen import Frozen
from tunecheck.training.data import IGNORED, Row, prompt_ids, prompt_text, read_rows
from tunecheck.training.events import Probe
from tunecheck.training.placement import where_evaluated
from tunecheck.training.restore import WIDENED_BYTES, in_fp32, model_mode, uncached, widened_bytes
from tunecheck.training.session import Session

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


class GenerationProbe(Probe):
    """Generates with transformers' own generate, then holds the tokens against one plain forward."""

    emits = (Generation,)

    def start(self, session: Session) -> None:
        self._generate(session, "start")

    def end(self, session: Session) -> None:
        self._generate(session, "end")

    def _generate(self, session: Session, when: str) -> None:
        questions = _questions(session)
        if not questions:
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
    """What the model is to continue."""

    prompt: str
    ids: list[int]
    new_tokens: int
    expected: str = ""
    as_trained: bool | None = None


def _questions(session: Session) -> list[_Question]:
    """The canary and a held-out instruction where the run generates, and its plain prompts."""
    run, tokenizer, rows = session.run, session.tokenizer, []
    if run.probes.generate:
        canary = run.data.canary
        rows += [Row("canary", canary.instruction, canary.response)] if canary else []
        rows += read_rows(run.data.file("heldout"), "heldout")[:1] if run.data.template != "blocks" else []
    asked = [_instruction(session, row) for row in rows]
    first = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    plain = [
        _Question(prompt=prompt, ids=tokenizer(prompt)["input_ids"] or [first], new_tokens=PROMPT_TOKENS)
        for prompt in run.probes.prompts  # an empty one is continued from the start token, as transformers does
    ]
    return asked + plain


def _instruction(session: Session, row: Row) -> _Question:
    tokenizer, template = session.tokenizer, session.run.data.template
    wanted = tokenizer(row.response, add_special_tokens=False)["input_ids"]
    ids = prompt_ids(row.instruction, tokenizer, template)
    held = [tokens for tokens in (*session.batches.heldout, *session.batches.train) if tokens.key == row.key]
    supervised = [label != IGNORED for label in held[0].labels] if held else []
    return _Question(
        prompt=prompt_text(row.instruction, tokenizer, template),
        ids=ids,
        new_tokens=len(wanted) + EXTRA_TOKENS,
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
    changed = int((chosen_by != torch.cat(output.logits).float()).any(dim=-1).sum())
    given, answer = whole[:, : len(question.ids)], whole[0, len(question.ids) :]
    with model_mode(model, False), torch.no_grad():  # its first token is now the end
        ended_at_once = _continued(model, given, 2, int(answer[0]), int(answer[0]))
    tie = TIE_ULPS * torch.finfo(logits.dtype).eps * float(logits.abs().max())
    logits = logits.float()
    chosen = logits.gather(1, answer[:, None])[:, 0]
    probabilities = logits.log_softmax(dim=-1)
    ended = bool((answer == tokenizer.eos_token_id).any())
    text = tokenizer.decode(answer, skip_special_tokens=True)
    broken = sum(c == "\ufffd" or (unicodedata.category(c) in UNREADABLE and not c.isspace()) for c in text)
    return Generation(
        when=when,
        prompt=question.prompt,
        expected=question.expected,
        text=text,
        ended=ended,
        prompt_as_trained=question.as_trained,
        not_largest=int((chosen_by.gather(1, answer[:, None])[:, 0] < chosen_by.amax(dim=-1)).sum()),
        stops=ended_at_once.shape[1] == given.shape[1] + 1,
        scores_changed=changed,
        greedy_agreement=float((chosen >= logits.amax(dim=-1) - tie).float().mean()),
        logit_difference=difference,
        mean_logprob=float(probabilities.gather(1, answer[:, None]).mean()),
        tokens=len(answer),
        most_frequent_share=int(answer.unique(return_counts=True)[1].max()) / len(answer),
        readable_share=1 - broken / len(text) if text else 1.0,
    )


def _continued(model: Any, ids: torch.Tensor, new_tokens: int, pad: int, end: int, **told: Any) -> Any:
    """Return what transformers' own generate makes of these tokens, always the likeliest next one."""
    limits = {"max_new_tokens": new_tokens, "do_sample": False, "pad_token_id": pad, "eos_token_id": end}
    return model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **limits, **told)
