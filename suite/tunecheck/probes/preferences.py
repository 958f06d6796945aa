"""Which rows the loss of early steps makes likelier, and what the script's own data call them: chosen or rejected.

Whatever the formula of a preference loss, its gradient by the scores of an answer says which way it goes.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch

from tunecheck.core.evidence import PreferencesLearned
from tunecheck.models.layer_names import is_pretrained
from tunecheck.probes.reference.own_tokens import tokens_and_numbers
from tunecheck.training.data import Batch
from tunecheck.training.events import EARLY_STEPS, Probe
from tunecheck.training.session import Session

OF_A_PASS, MOST_ROWS = 32, 256
"""Rows of a pass that are kept in mind, and of all of them."""
ONE_WAY = 0.9
"""Of the sizes of a row's pulls, what their sum is at least where its answer as a whole is made likelier or not."""


class PreferenceProbe(Probe):
    """Hooks what models return for rows: scores of their next tokens, or one score for each."""

    emits = (PreferencesLearned,)

    def start(self, session: Session) -> None:
        models = [module for module in session.model.modules() if is_pretrained(module)]
        self._models = models or [session.called]
        self._rows: list[tuple[torch.Tensor, bool]] = []
        """Tokens of each row that the loss pulls one way, and whether it raises them."""

    def step_begin(self, session: Session, step: int, window: Sequence[Batch]) -> None:
        if step < EARLY_STEPS and session.answers_named is not None:
            for model in self._models:
                self.hooks.after(model, self._returned, with_kwargs=True)

    def backward_end(self, session: Session, step: int) -> None:
        self.hooks.remove()

    def end(self, session: Session) -> None:
        rows, self._rows = self._rows, []
        if not rows or session.answers_named is None or session.tokenizer is None:
            return
        decode = partial(session.tokenizer.batch_decode, skip_special_tokens=True)
        named = session.answers_named(searched=not all(raised for _, raised in rows), decode=decode)
        if named is None:
            return
        tell, where = named
        texts = decode([tokens.tolist() for tokens, _ in rows])
        told = Counter((tell(text), raised) for text, (_, raised) in zip(texts, rows, strict=True))
        if any(better is not None for better, _ in told):
            seen = PreferencesLearned(
                where=where,
                chosen_raised=told[True, True],
                chosen_lowered=told[True, False],
                rejected_raised=told[False, True],
                rejected_lowered=told[False, False],
            )
            self.emit(seen)

    def _returned(self, model: Any, args: Any, given: dict[str, Any], out: Any) -> None:
        """Look at scores of the next tokens of rows, else at one score for each row."""
        if not torch.is_grad_enabled():
            return
        pulls = _pulls_of_answers
        if (found := tokens_and_numbers(args, given, out)) is None:
            found, pulls = tokens_and_numbers(args, given, out, _are_of_rows), _pulls_of_numbers
        if found is None or len(found[1]) > 1:
            return
        read, (scores,) = found
        if scores.requires_grad and int(read.min()) >= 0:  # else those are labels, of a model that is given embeddings
            self.hooks.gradient(scores, lambda gradient: self._see(read, pulls(read, gradient)))

    def _see(self, read: torch.Tensor, pulls: torch.Tensor) -> None:
        """Note the rows that are pulled one way, by how far each of their scores is raised: [rows, scores]."""
        total, sizes = pulls.sum(dim=1), pulls.abs().sum(dim=1)
        one_way = (sizes > 0) & (total.abs() >= ONE_WAY * sizes)
        every = -(-len(read) // OF_A_PASS)  # rejected answers may lie behind all chosen ones
        pulled = zip(read[one_way][::every].cpu(), (total[one_way][::every] > 0).tolist(), strict=True)
        self._rows += islice(pulled, MOST_ROWS - len(self._rows))


def _are_of_rows(read: torch.Tensor, shape: torch.Size) -> bool:
    """Return whether these are one number a row, or a token: likelihoods, of a head that is fused with its loss."""
    rows, positions = read.shape
    return shape in ((rows,), *((rows, each) for each in (1, positions - 1, positions)))


def _pulls_of_numbers(read: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return how far a step against the gradient raises the numbers of each row: [rows, numbers]."""
    return -gradient.detach().float().reshape(len(gradient), -1)


def _pulls_of_answers(read: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return how far it raises the score of each next token: [rows, positions]."""
    placed = gradient.detach().reshape(*read.shape, -1)[:, :-1]
    return -placed.gather(2, read[:, 1:, None].to(placed.device))[..., 0].float()
