"""Greedy continuations before and after training: can the model say what it was taught?"""

from __future__ import annotations

import torch

from suite.data import Row, read_rows
from suite.data.template import prompt_ids, prompt_text
from suite.evidence import Generation
from suite.probe import Probe
from suite.trainer import Session

EXTRA_TOKENS = 8
"""Tokens allowed beyond the expected answer: a model that does not stop must be seen not to stop."""


class GenerationProbe(Probe):
    """Generates with transformers' own generate, then holds the tokens against one plain forward."""

    emits = (Generation,)

    def start(self, session: Session) -> None:
        """Ask before training."""
        if session.run.probes.generate:
            self._generate(session, "start")

    def end(self, session: Session) -> None:
        """Ask after training."""
        if session.run.probes.generate:
            self._generate(session, "end")

    def _generate(self, session: Session, when: str) -> None:
        canary = session.run.data.canary
        rows = [Row("canary", canary.instruction, canary.response)] if canary else []
        rows += read_rows(session.run.data.file("heldout"), "heldout")[:1]
        for row in rows:
            self.emit(_answer(session, row, when))


def _answer(session: Session, row: Row, when: str) -> Generation:
    tokenizer, model, was_training = session.tokenizer, session.model, session.model.training
    prompt = prompt_ids(row.instruction, tokenizer, session.run.data.template)
    wanted = tokenizer(row.response, add_special_tokens=False)["input_ids"]
    ids = torch.tensor([prompt], device=session.device)
    model.eval()
    try:
        with torch.no_grad():
            output = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=len(wanted) + EXTRA_TOKENS,
                do_sample=False,
                use_cache=True,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=tokenizer.eos_token_id,
                return_dict_in_generate=True,
                output_scores=True,
            )
            whole, chosen_by = output.sequences, torch.cat(output.scores).float()
            logits = model(input_ids=whole, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    finally:
        model.train(was_training)
    answer = whole[0, len(prompt) :]
    probabilities = logits.log_softmax(dim=-1)
    ended = bool((answer == tokenizer.eos_token_id).any())
    return Generation(
        when=when,
        prompt=prompt_text(row.instruction, tokenizer, session.run.data.template),
        expected=row.response if row.key == "canary" else "",
        text=tokenizer.decode(answer, skip_special_tokens=True),
        ended=ended,
        greedy_agreement=float((logits.argmax(dim=-1) == answer).float().mean()),
        logit_difference=float((chosen_by - logits).abs().max() / logits.abs().max()),
        mean_logprob=float(probabilities.gather(1, answer[:, None]).mean()),
    )
