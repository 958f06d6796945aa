"""Which rows the loss of early steps makes likelier, by its gradient, and which ones the script calls chosen."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, dropwhile, islice, takewhile
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from tunecheck.core.evidence import PreferencesLearned
from tunecheck.models.layer_names import is_pretrained
from tunecheck.probes.reference.given import in_common
from tunecheck.probes.reference.loss_graph import graph_of, saved
from tunecheck.probes.reference.measures import Digest, digest, living
from tunecheck.probes.reference.own_tokens import LOOKED_AT, NEARLY_ALL, raised_by, tokens_and_numbers
from tunecheck.training.events import EARLY_STEPS, Probe
from tunecheck.training.session import Session

OF_A_PASS, MOST_ROWS = 32, 256
"""Rows of a pass that are kept in mind, and of all of them."""
ONE_WAY = 0.9
"""Of the sizes of a row's pulls, what their sum is at least where its answer as a whole is made likelier or not."""
MOST_NODES = 1024
"""Functions next to a loss among which its factors of rows are looked for."""
FEWEST_ROWS, MOST_MEAN = 4, 1e-3
"""Rows whose factors may be advantages, and their mean at most, in standard deviations: advantages are centred."""
FEWEST_TOKENS = 8
"""Of a row, by which it is told whose tokens the loss raises."""
SHARED = 8
"""Tokens that two answers to one prompt begin with, and how many fewer any third row has in common with them."""
FROM_STEP = 2
"""From which on a policy is not its reference any more: a schedule may begin with a rate of 0."""
_Answer = tuple[list[int], list[bool]]
"""Tokens of a row, and which of its next tokens the loss uses."""


class PreferenceProbe(Probe[PreferencesLearned]):
    """Hooks what models return for rows: scores of their next tokens, or one score for each."""

    def start(self, session: Session) -> None:
        models = [module for module in session.model.modules() if is_pretrained(module)]
        self._models = [*dict.fromkeys([*models, session.called])]  # a head of the script's own may be what scores rows
        parts = (part for part in session.model.modules() if isinstance(part, torch.nn.Linear))
        self._heads = [part for part in parts if part.out_features == 1]
        self._marks = [getattr(session.tokenizer, f"{name}_token_id", None) for name in ("pad", "eos")]
        self._rows: list[tuple[torch.Tensor, bool]] = []
        """Tokens of each row that the loss pulls one way, and whether it raises them."""
        self._rated = Counter[tuple[bool | None, bool]]()
        """Such rows, by whether their advantage is positive."""
        self._cancelled = list[bool]()
        """Of each step that raises rows and lowers rows, whether they are the same."""
        self._unmoved = list[bool]()
        """Of each loss of margins, whether all of them are 0."""
        self._of_others, self._compared = 0, 0
        """Rows whose loss is of the tokens of other rows, and all that were looked at."""
        self._alike = list[bool]()
        """Of two rows that answer one prompt, whether the loss pulls both the same way."""
        self._padded = list[bool]()
        """Of answers, some raised and some lowered, that are padded: whether the loss uses that as their next token."""
        self._late = list[bool]()
        """Of pairs of a raised and a lowered row, whether the first tokens in which they differ are not learned."""

    def step_begin(self, session: Session, step: int, window: object) -> None:
        self._passes: dict[int, list[torch.Tensor]] = {}
        """Number of the function behind the scores of each pass of this step to the factors of its rows in a loss."""
        self._weighed: defaultdict[int, list[tuple[float, bool | None]]] = defaultdict(list)
        """Factors of the rows of this step's passes, by their place in the loss, and which way each row is pulled."""
        self._pulled = defaultdict[int, tuple[list[Digest], list[Digest]]](lambda: ([], []))
        """Digests of all that passes of each model are given of rows that are lowered, and of those that are raised."""
        self._answers: tuple[list[_Answer], list[_Answer]] = [], []
        """Rows of this step that are lowered, and those that are raised."""
        self._one_way = list[tuple[list[int], bool]]()
        """Tokens of the first rows of this step that are pulled one way, and whether it is up."""
        self._read = list[torch.Tensor]()
        """The next tokens of each row of this step."""
        self._astray = list[tuple[torch.Tensor, torch.Tensor]]()
        """Places of rows at which the loss raises, or lowers, other tokens than their next ones; and those."""
        self._last_read: list[torch.Tensor] = []
        """What the last pass that returned no numbers of rows was given, its tokens first."""
        self._scored = list[tuple[list[torch.Tensor], torch.Tensor]]()
        """The same of passes that a head followed, and what that made of them."""
        self._step = step
        self._way = -1 if any(group.get("maximize") for group in session.optimizer.param_groups) else 1
        if step < EARLY_STEPS and session.answers_named is not None:
            self.hooks.backward(before=self._differentiated)
            for model in self._models:
                self.hooks.after(model, self._returned, with_kwargs=True)
            for head in self._heads:
                self.hooks.after(head, self._headed)

    def _headed(self, _head: Any, _args: Any, out: Any) -> None:
        """Note what a head of the script's own makes of the rows of a pass, in case no model returns it."""
        if self._last_read and out.requires_grad and _are_of_rows(self._last_read[0], out.squeeze(-1).shape):
            self._scored.append((self._last_read, out))

    def _differentiated(self, tensors: Any, *_: Any, **__: Any) -> None:
        scored, self._scored = self._scored, []
        for held, out in scored if not self._passes else ():
            self._follow(self._heads, held, out, _pulls_of_numbers, [])
        if self._step >= FROM_STEP and self._passes:
            margins = map(_margins, self._until_scores(getattr(tensors, "grad_fn", None)))
            self._unmoved += [not bool(held.any()) for held in margins if held is not None and held.ndim]
        for node, factors in _factors(self._until_scores(getattr(tensors, "grad_fn", None))):
            numbers = (each._sequence_nr() for each in self._until_scores(node))
            if len(of := [self._passes[number] for number in numbers if number in self._passes]) == 1:
                of[0].append(factors)

    def _until_scores(self, function: Any) -> Iterator[Any]:
        """Yield the functions of a loss up to the scores of its passes."""
        ends = set[Any]()
        for node in islice(graph_of(function, ends), MOST_NODES):
            if node._sequence_nr() in self._passes:
                ends.add(node)
            yield node

    def backward_end(self, session: Session, step: int) -> None:
        """Take factors that are centred, as those of GRPO are, for advantages."""
        self.hooks.remove()
        if contrasted := [pulled for pulled in self._pulled.values() if all(pulled)]:
            self._cancelled.append(all(lowered == raised for lowered, raised in contrasted))
        for places, tokens in self._astray:
            others = (row for row in self._read if row.shape == tokens.shape)
            shares = (float((row == tokens)[places].float().mean()) for row in others)
            self._of_others += any(share > NEARLY_ALL for share in shares)
        padded = (_learns_padding(*each, *self._marks) for each in chain(*self._answers) if all(self._answers))
        self._padded += [beyond for beyond in padded if beyond is not None]
        for lowered in self._answers[0]:
            # of one prompt, or of none that this step has
            raised = max(self._answers[1], key=lambda answer: in_common(lowered[0], answer[0]), default=lowered)
            if (late := _learned_late(lowered, raised)) is not None:
                self._late.append(late)
        if len({up for _, up in self._one_way}) == 2:
            self._alike += _pulled_alike(self._one_way)
        for weighed in self._weighed.values():
            factors, told = torch.tensor([f for f, _ in weighed]), [pair for pair in weighed if pair[1] is not None]
            spread = float(factors.std()) if len(factors) >= FEWEST_ROWS else 0.0
            centred = abs(float(factors.mean())) <= MOST_MEAN * spread > 0
            along = sum((factor > 0) == raised for factor, raised in told)
            if centred and not 1 - ONE_WAY < along / max(1, len(told)) < ONE_WAY:  # else they are of other rows
                way = -1 if 2 * along < len(told) and _are_negated(factors) else 1
                self._rated.update((way * factor > 0, bool(raised)) for factor, raised in told)

    def end(self, session: Session) -> None:
        rows, self._rows = self._rows, []
        told, where = self._rated, ""
        if rows and session.answers_named is not None:
            decode = partial(getattr(session.tokenizer, "batch_decode", _spelt), skip_special_tokens=True)
            if named := session.answers_named(searched=not all(raised for _, raised in rows), decode=decode):
                texts = decode([tokens.tolist() for tokens, _ in rows])
                by_name = Counter((named[0](text), raised) for text, (_, raised) in zip(texts, rows, strict=True))
                if any(better is not None for better, _ in by_name):
                    told, where = by_name, named[1]
        cancelled, unmoved = (len(steps) * all(steps) for steps in (self._cancelled, self._unmoved))
        if told or cancelled or unmoved or self._of_others or any(self._late + self._alike + self._padded):
            seen = PreferencesLearned(
                where=where,
                chosen_raised=told[True, True],
                chosen_lowered=told[True, False],
                rejected_raised=told[False, True],
                rejected_lowered=told[False, False],
                cancelled=cancelled,
                pairs=len(self._late),
                learned_late=sum(self._late),
                padded=len(self._padded),
                padding_used=sum(self._padded),
                prompts=len(self._alike),
                pulled_alike=sum(self._alike),
                unmoved=unmoved,
                of_others=self._of_others,
                compared=self._compared,
            )
            self.emit(seen)

    def _returned(self, model: Any, args: Any, given: dict[str, Any], out: Any) -> None:
        """Look at scores of the next tokens of rows, else at one score for each row."""
        if not torch.is_grad_enabled():
            return
        pulls = _pulls_of_answers
        if (found := tokens_and_numbers(args, given, out)) is None:
            found, pulls = tokens_and_numbers(args, given, out, _are_of_rows), _pulls_of_numbers
        given_tensors = [held for held in tree_leaves((args, given)) if isinstance(held, torch.Tensor) and held.ndim]
        if found is None or len(found[1]) > 1 or found[0].shape[1] < 2:  # one token has no next one
            tokens = (held for held in given_tensors if held.ndim == 2 and not held.is_floating_point())
            self._last_read = _with_rows_of(next(tokens, None), given_tensors)
            return
        read, (scores,) = found
        number = scores.grad_fn._sequence_nr() if scores.grad_fn is not None else None
        # else those are labels, of a model that is given embeddings, or what a model inside has returned
        if number is not None and number not in self._passes and int(read.min()) >= 0:
            factors = self._passes[number] = []
            self._follow(model, _with_rows_of(read, given_tensors), scores, pulls, factors)
            if pulls is _pulls_of_answers:
                self.hooks.gradient(scores, partial(self._look_for_tokens, read))

    def _follow(self, of: Any, rows: list[torch.Tensor], scores: torch.Tensor, pulls: Any, factors: Any) -> None:
        """Look at how the loss pulls these rows, by the gradient by their scores."""
        self.hooks.gradient(scores, lambda gradient: self._see(id(of), rows, pulls(rows[0], gradient), factors))

    def _look_for_tokens(self, read: torch.Tensor, gradient: torch.Tensor) -> None:
        """Note rows whose next tokens are not those that the loss raises or lowers most."""
        every = -(-read.numel() // LOOKED_AT)  # each position has a number for each token of the vocabulary
        places, tokens = raised_by(gradient.detach().reshape(*read.shape, -1)[:OF_A_PASS, :-1:every])
        rows = read[:OF_A_PASS, 1::every].to(tokens.device)
        self._read += [*rows]
        for row, place, raised in zip(rows, places, tokens, strict=True):
            if (count := int(place.sum())) >= FEWEST_TOKENS:
                self._compared += 1
                self._astray += [(place, raised)] if 2 * int((row == raised)[place].sum()) < count else []

    def _see(self, of: int, given: list[torch.Tensor], pulls: torch.Tensor, advantages: list[torch.Tensor]) -> None:
        """Note the rows that are pulled one way, by how far each of their scores is raised: [rows, scores]."""
        read = given[0]
        pulls = pulls.to(read.device)
        total, sizes = self._way * pulls.sum(dim=1), pulls.abs().sum(dim=1)
        one_way = (sizes > 0) & (total.abs() >= ONE_WAY * sizes)
        for raises, rows in enumerate(self._pulled[of]):
            if bool((so := one_way & ((total > 0) == bool(raises))).any()):
                rows += [digest(held.detach()[so.to(held.device)]) for held in given]
        if pulls.shape[1] == read.shape[1] - 1:
            known = ((total > 0)[one_way], read[one_way], (pulls != 0)[one_way])
            for up, tokens, used in zip(*(part.tolist() for part in known), strict=True):
                if len(self._answers[up]) < OF_A_PASS:  # each is compared with each that goes the other way
                    self._answers[up].append((tokens, used))
        room = OF_A_PASS - len(self._one_way)
        first = zip(read[one_way][:room].tolist(), (total[one_way][:room] > 0).tolist(), strict=True)
        self._one_way += [(_unpadded(tokens), up) for tokens, up in first]
        every = -(-len(read) // OF_A_PASS)  # rejected answers may lie behind all chosen ones
        raised = [up if known else None for up, known in zip((total > 0).tolist(), one_way.tolist(), strict=True)]
        for place, factors in enumerate(advantages):
            if len(factors) == len(read):
                self._weighed[place] += zip(factors.tolist(), raised, strict=True)
        pulled = zip(read[one_way][::every].cpu(), (total[one_way][::every] > 0).tolist(), strict=True)
        self._rows += islice(pulled, MOST_ROWS - len(self._rows))


def _with_rows_of(read: torch.Tensor | None, given: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return these tokens, and all others of the tensors that have as many rows; nothing without tokens."""
    others = (held for held in given if read is not None and held is not read and len(held) == len(read))
    return [] if read is None else [read, *others]


def _unpadded(tokens: list[int]) -> list[int]:
    """Return a row without the tokens that it repeats at its beginning, as padding on the left does."""
    return [*dropwhile(lambda token: token == tokens[0], tokens)]


def _pulled_alike(rows: list[tuple[list[int], bool]]) -> list[bool]:
    """Return for each two rows that begin alike, as no third one does, whether both are pulled the same way.

    Nothing where other rows are left: of more than two answers to a prompt, those that begin alike may be as good.
    """
    nearest = dict[int, int]()
    for at, (tokens, _) in enumerate(rows):
        others = ((in_common(tokens, other), place) for place, (other, _) in enumerate(rows) if place != at)
        (shared, place), (next_shared, _), *_ = [*sorted(others, reverse=True), (0, -1)]
        if shared >= next_shared + SHARED:
            nearest[at] = place
    pairs = [(one, other) for one, other in nearest.items() if one < other and nearest.get(other) == one]
    return [rows[one][1] == rows[other][1] for one, other in pairs if 2 * len(pairs) >= NEARLY_ALL * len(rows)]


def _learned_late(one: _Answer, other: _Answer) -> bool | None:
    """Return whether the loss leaves out the first tokens that differ, and uses later ones; None if it uses none."""
    at = in_common(one[0], other[0])
    first, second = (any(used[at - 1 + more : at + more] == [True] for _, used in (one, other)) for more in (0, 1))
    return not first if at and (first or second) else None


def _learns_padding(tokens: list[int], used: list[bool], pad: int | None, end: int | None) -> bool | None:
    """Return whether the loss uses the first padding behind a row's end as its next token.

    None of a row that has none, or whose end it does not use. Where padding is the end token, one of them ends the row.
    """
    padding = sum(1 for _ in takewhile(lambda token: token == pad, reversed(tokens))) - (pad == end)
    at = len(tokens) - padding
    return used[at - 1] if padding > 0 and at > 1 and (used[at - 2] or used[at - 1]) else None


def _margins(node: Any) -> torch.Tensor | None:
    """Return what a log-sigmoid is taken of, however it is written; None of other functions."""
    if node.name() == "SigmoidBackward0":
        return None if (result := saved(node, "result")) is None else result - 0.5
    return saved(node, "self") if node.name() in ("LogSigmoidBackward0", "SoftplusBackward0") else None


def _spelt(rows: list[list[int]], **_: Any) -> list[str]:
    """Return the tokens of each row as text, where no tokenizer is known."""
    return [" ".join(map(str, row)) for row in rows]


def _factors(functions: Iterable[Any]) -> Iterator[tuple[Any, torch.Tensor]]:
    """Yield the factors of a loss's rows that nothing learns from, one a row, with the functions that multiply."""
    for node in functions:
        for factors in (saved(node, "self"), saved(node, "other")) if node.name() == "MulBackward0" else ():
            if isinstance(factors, torch.Tensor) and not factors.requires_grad and factors.ndim < 3:
                rows = factors.reshape(len(factors) if factors.ndim else 1, -1).float()
                if rows.numel() and bool((rows == rows[:, :1]).all()):
                    yield node, rows[:, 0]


def _are_negated(factors: torch.Tensor) -> bool:
    """Return whether these are the negatives of a tensor that the script holds: `-advantages * ratio` has them so."""
    alive = (each for each in living(torch.Tensor) if type(each) is torch.Tensor and each.numel() == len(factors))
    alive = (each for each in alive if each.layout is torch.strided and each.is_floating_point() and not each.is_meta)
    held = [-each.detach().flatten().float().cpu() for each in alive]
    return any(torch.equal(each, factors) or torch.equal(each.flip(0), factors) for each in held)  # of joined losses


def _are_of_rows(read: torch.Tensor, shape: torch.Size) -> bool:
    """Return whether these are one number a row, or a token: likelihoods, of a head that is fused with its loss."""
    rows, positions = read.shape
    return shape in ((rows,), *((rows, each) for each in (1, positions - 1, positions)))


def _pulls_of_numbers(read: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return how far a step against the gradient raises the numbers of each row: [rows, numbers]."""
    return -gradient.detach().float().reshape(len(gradient), -1)


def _pulls_of_answers(read: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return how far it raises the score of each next token: [rows, positions]; nothing of scores of other tokens.

    Of its own ones the loss raises or lowers the next token most, at the first position that it uses.
    """
    placed, following = gradient.detach().reshape(*read.shape, -1)[:, :-1], read[:, 1:, None].to(gradient.device)
    pulls = -placed.gather(2, following)[..., 0].float()
    first = (pulls != 0).int().argmax(dim=1, keepdim=True)
    scores, wanted = (each.take_along_dim(first[..., None], dim=1)[:, 0] for each in (placed, following))
    return pulls * ((scores.argmin(dim=1, keepdim=True) == wanted) | (scores.argmax(dim=1, keepdim=True) == wanted))
