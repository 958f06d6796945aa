"""What the model is given: digests of every batch, and the targets of its rows."""

import sys
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations, count, groupby, islice
from typing import Any, TypeGuard

import torch
from torch.autograd.graph import GradientEdge
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import keystr, tree_leaves, tree_leaves_with_path
from torch.utils.data.dataloader import _BaseDataLoaderIter

from tunecheck.core.check import grouped
from tunecheck.core.evidence import RowRead, StepInputs, TargetWritten, TokensLearned
from tunecheck.core.premises import Premise
from tunecheck.models.layer_names import is_pretrained
from tunecheck.probes.reference import padded
from tunecheck.probes.reference.given import end_tokens, row_digest, special_tokens
from tunecheck.probes.reference.loss_graph import gradients, graph_of, saved, straight_back
from tunecheck.probes.reference.measures import evenly, random_digest
from tunecheck.training.data import IGNORED, Batch
from tunecheck.training.events import EARLY_STEPS, Probe
from tunecheck.training.session import Session

MOST_NODES = 64
"""Functions next to a loss among which its cross entropies are looked for."""
NEAREST = 5
"""Functions behind a cross entropy among which is the product that its scores are, beside a temperature."""
FEWEST_ROWS, OF_A_ROW = 4, 64
"""Rows that tell an order, and numbers of each that are looked at."""
FEWEST_TOKENS = 8
"""Different numbers in a tensor of tokens, and its rows at least: of few kinds, as masks and segments are, nothing is
told. Also the tokens of a target that is seen to be copied, and those at most in front of a row's beginning."""
MOST_CLASSES, LONG_RUN = 256, 16
"""Scores of a position at most that may be letters, tags or bytes, and equal tokens in a row that no text has."""
LAYERS = torch.nn.Linear, torch.nn.RNNBase, _ConvNd
"""Those whose initial weights are made for numbers near 1."""
LEAST_SPREAD, MOST_ROUNDING = 1.05, 2e-3
"""Of shares of positions that learn, the largest over the least; and how far a divisor is from a whole number."""
MEAN = 1
"""What torch calls the reduction of a cross entropy to its mean, which leaves out ignored labels."""
REGRESSIONS = "MseLossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0"
MOST_NUMBERS = 1 << 16
"""Of a pass whose rows are compared with earlier ones."""
FEWEST_DENSE = 16
"""Targets of a batch whose rows have several, from which on it is noted whether they are of one class."""


class StepInputsProbe(Probe[StepInputs | TokensLearned]):
    """Notes the digests of every step's batches, and the targets of their rows: steps are compared in any training."""

    def start(self, session: Session) -> None:
        """List the models, those inside of others too: a loss may call them by themselves."""
        known = session.run.holds(Premise.CAUSAL_LM) and session.run.holds(Premise.ROWS_FOLLOWED)
        models = [module for module in session.model.modules() if is_pretrained(module)]
        self._models = [] if known else models or [session.called]
        self._yielded: defaultdict[str, set[str]] = defaultdict(set)
        """Rows of tokens that loaders yield, by the names of their tensors."""
        self._batches = deque[list[torch.Tensor]](maxlen=2)
        """Tensors of the last batches of loaders, one of which may be drawn ahead."""
        self._device, self._random = session.device, ""
        self._answered = dict[tuple[str, int], float]()
        """Rows of tokens, by all that is given with them, and the number of a loss, to their targets."""
        self._passes = Counter[tuple[int, str]]()
        """Of each model and row of tokens the number of passes of one step that read it."""
        config = getattr(session.model, "config", None)
        writes = bool(getattr(config, "is_encoder_decoder", False))
        self._learned, self._spelt = defaultdict[int, list[list[int]]](list), Counter[int]()
        """Of each vocabulary, by the number of its scores, the targets of rows, and rows of CTC that are filled up."""
        self._divided = list[tuple[float, float]]()
        """Of losses that are no mean of torch's, how far they rise with all terms, and what share of these learns."""
        known_marks = special_tokens(session.tokenizer, "pad", "bos", "eos")
        self._unknown = special_tokens(session.tokenizer, "unk") - known_marks
        self._ends = end_tokens(session.tokenizer, session.model)[1] if writes else set[int]()
        self._start = getattr(config, "decoder_start_token_id", None)
        self._listen(0)

    def _listen(self, step: int) -> None:
        """Hear this step from the end of the one before on: a loop's begins within its first pass."""
        self._read, self._now = dict[RowRead, None](), Counter[tuple[int, str]]()
        self._targets = defaultdict[str, tuple[int, ...]](tuple)
        self._aims: list[str] = []
        self._written: list[TargetWritten] = []
        self._source: list[list[int]] = []
        self._continued = Counter(continued=0)
        self._again = Counter(known=0, contrary=0)
        if step < EARLY_STEPS and (generation := sys.modules.get("transformers.generation")) is not None:
            self.hooks.function(generation.GenerationMixin, "generate", before=self._continues)
        if step >= EARLY_STEPS:  # no batch is kept alive that nobody looks at
            self._batches.clear()
        self._orders: dict[tuple[int, ...], list[torch.Tensor]] = {}
        """Orders in which passes with gradients read the rows of a batch, and that batch."""
        self._held, self._twins = list[torch.Tensor](), list[bool]()
        """What passes with gradients read, until the next backward, and whether two of it are one yielded twice."""
        self._sizes = list[torch.Tensor]()
        """Root mean squares of what layers multiply of it as it is."""
        self._constants = set[str]()
        """What passes with gradients are given of one number a row."""
        self._texts = list[list[str] | None]()
        """Digests of each pass's rows until the next backward; None of a pass that reads no tokens."""
        self._answers = list[float]()
        """Targets of a regression, one for each row of tokens."""
        self._outputs, self._paired = set[int](), list[bool | None]()
        """Numbers of the functions that gave their outputs, and whether a loss's targets have the order of its rows."""
        if step < EARLY_STEPS and self._models:
            self.hooks.function(_BaseDataLoaderIter, "__next__", after=self._yields)
            for model in self._models:
                self.hooks.before(model, self._called, with_kwargs=True)
                self.hooks.after(model, self._returned)
            for layer in {part for model in self._models for part in model.modules() if isinstance(part, LAYERS)}:
                self.hooks.before(layer, self._multiplied)

    def _yields(self, batch: Any, _iterator: Any) -> None:
        self._batches.append([held for held in tree_leaves(batch) if _has_rows(held)])
        for path, tensor in tree_leaves_with_path(dict(batch) if isinstance(batch, Mapping) else batch):
            if isinstance(tensor, torch.Tensor) and tensor.ndim == 2:  # a decoder reads all but the last token
                self._yielded[keystr(path)].update(*map(_rows_of_tokens, (tensor, tensor[:, :-1], tensor[:, 1:])))

    def _continues(self, model: Any, *args: Any, attention_mask: Any = None, **_: Any) -> None:
        """Count the rows that a decoder goes on with, and those that end in padding."""
        if isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 2:
            shown = attention_mask[:, -1] != 0
            if not getattr(model.config, "is_encoder_decoder", False):
                self._continued.update(continued=len(shown), behind_padding=int((~shown).sum()))

    def step_begin(self, session: Session, step: int, window: Sequence[Batch]) -> None:
        self._window, self._early = window, step < EARLY_STEPS
        self.hooks.backward(before=self._differentiated)

    def _called(self, model: Any, args: Any, given: dict[str, Any]) -> None:
        """Note the rows that a model learns from, where a mask tells their tokens from padding."""
        if torch.is_grad_enabled():
            given_rows = [row for held in tree_leaves((args, given)) for row in _rows_of_tokens(held)]
            self._now.update((id(model), row) for row in given_rows)
            self._texts.append(_digests_of((args, given)) if given_rows else None)
            read = [held for held in tree_leaves((args, given)) if _has_rows(held)]
            named = {**{f"argument {at}": held for at, held in enumerate(args)}, **given}
            self._constants |= {told for told in [_constant_of(named)] if told is not None}
            self._random = self._random if self._held else random_digest(self._device)
            self._held += [held for held in read if not held.requires_grad]
            for batch in self._batches:
                orders = (_order(each, held) for each in batch for held in read)
                self._orders |= {order: batch for order in orders if order}
        ids, mask = given.get("input_ids", next(iter(args), None)), given.get("attention_mask")
        if not isinstance(ids, torch.Tensor) or ids.ndim != 2 or ids.is_floating_point() or not torch.is_grad_enabled():
            return
        if self._ends and given.get("encoder_hidden_states") is None:
            self._source = ids.tolist()
        if not isinstance(mask, torch.Tensor) or ids.shape != mask.shape:
            return
        for row, keep in zip(ids.tolist(), (mask != 0).tolist(), strict=True):
            if tokens := [token for token, real in zip(row, keep, strict=True) if real]:
                count, last, different = len(tokens), tokens[-1], len({*tokens})
                self._read[RowRead(digest=row_digest(tokens), tokens=count, last=last, different=different)] = None

    def _multiplied(self, _layer: Any, args: Any) -> None:
        """Note how large the numbers of an input are that a layer multiplies as they are."""
        if not _has_rows(read := next(iter(args), None)) or read.requires_grad:  # what it reads is computed
            return
        given = {held.untyped_storage().data_ptr() for held in self._held if held.is_floating_point()}
        if read.untyped_storage().data_ptr() in given:
            self._sizes.append(torch.linalg.vector_norm(read.detach(), dtype=torch.float32) / read.numel() ** 0.5)

    def _returned(self, _model: Any, _args: Any, out: Any) -> None:
        made = (held.grad_fn for held in tree_leaves(out) if isinstance(held, torch.Tensor))
        self._outputs.update(function._sequence_nr() for function in made if function is not None)

    def _differentiated(self, tensors: Any, *_: Any, **__: Any) -> None:
        if len(self._orders) == 1:  # else there are several passes
            self._paired.append(_are_paired(getattr(tensors, "grad_fn", None), self._outputs, *self._orders.popitem()))
        self._orders = {}
        if self._held:
            self._twins.append(self._are_twins(getattr(tensors, "grad_fn", None)))
            self._held = []
        (texts, self._texts), number = (self._texts, []), count()
        rows, divided = {len(batch.keys) for batch in self._window}, list[tuple[float, int, int]]()
        for node in islice(graph_of(getattr(tensors, "grad_fn", None)), MOST_NODES):
            self._count_spelt(node)
            aims = saved(node, "target")
            if isinstance(aims, torch.Tensor) and aims.numel() in rows and not aims.requires_grad:
                self._aims += [row_digest(held)] if _are_drawn(held := aims.flatten().tolist()) else []
                of_texts = all(texts) and (bool(texts) or bool(self._answered))  # rows are read in early steps alone
                self._answers += held if node.name() in REGRESSIONS and of_texts else []
                # of candidates, such as the others of a batch, a target is a place
                if node.name() != "NllLossBackward0" or _is_of_classes(node, node._saved_self.shape[-1]):
                    self._compare(texts, held, of=next(number))
            self._look_at_dense(node, max(rows, default=0))
            if (hot := _one_hot(node)) is None and node.name() != "NllLossBackward0":
                continue
            scores, targets = (node._saved_self, node._saved_target) if hot is None else (hot, hot.argmax(dim=-1))
            if hot is None:  # torch holds -100 without its sign, which no tensor holds
                targets = targets.where(targets != node._saved_ignore_index, IGNORED)
            if hot is None and node._saved_reduction != MEAN:  # a mask may multiply each loss
                pull = torch.ones(()) if (pulls := gradients(tensors, [GradientEdge(node, 0)])) is None else pulls[0]
                targets = targets.where(pull.to(targets.device) != 0, IGNORED)
                learned = targets != IGNORED
                divided += [(float(pull.expand(targets.shape)[learned].sum()), int(learned.sum()), targets.numel())]
            if len(rows) == 1 and not targets.numel() % min(rows) and targets.numel() > min(rows) and self._early:
                many = scores.shape[-1] > MOST_CLASSES and _is_of_classes(node, scores.shape[-1])
                for row in targets.view(min(rows), -1) if many else ():
                    self._learned[scores.shape[-1]].append(row[row != IGNORED].tolist())
            if targets.numel() in rows and (_is_of_classes(node, scores.shape[-1]) or _is_of_pairs(node)):
                self._targets[str(scores.shape[-1])] += (*targets[targets != IGNORED].tolist(),)
            elif self._ends and len(rows) == 1 and not targets.numel() % min(rows):
                sources = self._source if len(self._source) == min(rows) else [None] * min(rows)
                for row, source in zip(targets.view(min(rows), -1), sources, strict=True):
                    kept = row[row != IGNORED].tolist()
                    runs = _runs(kept)
                    ended = not self._ends.isdisjoint(token for token, _ in runs[-2:])  # padding may follow the end
                    filled = runs[-1][1] - (runs[-1][0] in self._ends) if ended else 0
                    more: dict[str, Any] = {"begun": kept[:1] == [self._start], "filled": filled}
                    if source is not None:
                        more["copied"] = _is_part([token for token in kept if token not in self._ends], source)
                    self._written.append(TargetWritten(tokens=len(kept), digest=row_digest(kept), ended=ended, **more))
        if divided:
            total, learned, every = map(sum, zip(*divided, strict=True))
            self._divided.append((total, learned / every))

    def _compare(self, texts: list[list[str] | None], targets: list[float], *, of: int) -> None:
        """Note a loss's targets of rows of tokens, one each, and count rows that had another target before."""
        known = [each for each in texts if each is not None and len(each) == len(targets)]
        if not known or len(known) < len(texts):
            return
        for row, target in zip(map("".join, zip(*known, strict=True)), targets, strict=True):
            again = (row, of) in self._answered
            self._again.update(known=again, contrary=self._answered.setdefault((row, of), target) != target)

    def _look_at_dense(self, node: Any, rows: int) -> None:
        """Note the least and the largest class that a cross entropy with several targets a row learns."""
        targets = node._saved_target if node.name().startswith("NllLoss") else None
        if targets is None or not 0 < rows < targets.numel():
            return
        classes = node._saved_self.shape[min(1, node._saved_self.ndim - 1)]
        kept = targets[targets != node._saved_ignore_index] if _is_of_classes(node, classes) else targets[:0]
        if kept.numel() >= FEWEST_DENSE:
            self._targets[str(classes)] += (*map(int, kept.aminmax()),) * (FEWEST_DENSE // 2)

    def _are_twins(self, function: Any) -> bool:
        """Return whether the same weights read two tensors of a batch that are one, and nothing is drawn for either."""
        if any(map(_has_each_row_twice, self._held)):
            return random_digest(self._device) == self._random
        pairs = (pair for batch in self._batches for pair in combinations(batch, 2))
        if not any(_is_yielded_twice(*pair, self._held) for pair in pairs):
            return False
        uses = Counter(use for node in graph_of(function) for use, _ in node.next_functions if hasattr(use, "variable"))
        return 2 * sum(times > 1 for times in uses.values()) > len(uses) and random_digest(self._device) == self._random

    def _count_spelt(self, node: Any) -> None:
        """Count rows of CTC whose targets all have one length, and end in more or less of one token."""
        targets, lengths = (getattr(node, f"_saved_{name}", None) for name in ("targets", "target_lengths"))
        if self._early and targets is not None and lengths is not None and len({*map(int, lengths)}) == 1:
            rows = targets.view(len(lengths), -1)[:, : int(lengths[0])]
            self._spelt[node._saved_log_probs.shape[-1]] += len(rows) * (padded.fill_of(rows) is not None)

    def end(self, session: Session) -> None:
        over_all = _over_all(self._divided)
        for outputs in dict.fromkeys([*self._learned, *self._spelt]) or [0] * bool(over_all):
            rows = self._learned[outputs]
            times = Counter(chain(*rows))
            runs = grouped((token, size) for row in rows for token, size in _runs(row) if size >= LONG_RUN)
            seen = TokensLearned(
                outputs=outputs,
                rows=len(rows),
                targets=times.total(),
                most=max(times.values(), default=0),
                unknown=sum(times[token] for token in self._unknown),
                runs=max((len(sizes) for token, sizes in runs.items() if 2 * sum(sizes) >= times[token]), default=0),
                spelt=self._spelt[outputs],
                over_all=over_all,
            )
            self.emit(seen)

    def backward_end(self, session: Session, step: int) -> None:
        """Record this window, which a loop fills until now."""
        self.hooks.remove()
        self._passes |= self._now
        seen = StepInputs(
            step=step,
            digests=tuple(batch.digest for batch in session.window),
            opaque=any(batch.opaque for batch in session.window),
            targets={**self._targets},
            aims=tuple(self._aims),
            written=tuple(self._written),
            read=tuple(self._read),
            equal=next((batch.equal for batch in session.window), ()),
            paired=any(told) if (told := [each for each in self._paired if each is not None]) else None,
            constant=None if not self._constants else max(self._constants) if len(self._constants) == 1 else "",
            size=max(map(float, self._sizes), default=None),
            twins=any(self._twins) if step and self._twins else None,  # a loop is first heard within step 0
            unread=self._unread() if step + 1 == EARLY_STEPS else (),
            answers=len(self._answers),
            answers_from=min(self._answers, default=0.0),
            answers_to=max(self._answers, default=0.0),
            **self._continued,
            **self._again,
        )
        self.emit(seen)
        self._listen(step + 1)

    def _unread(self) -> tuple[str, ...]:
        """Return the tensors of tokens that no pass reads, of loaders whose other rows two passes of a step read."""
        if not self._passes or 2 * sum(count > 1 for count in self._passes.values()) < len(self._passes):
            return ()
        read = {row for _, row in self._passes}
        return tuple(name for name, rows in self._yielded.items() if len(rows) >= FEWEST_TOKENS and not rows & read)


def _over_all(divided: Sequence[tuple[float, float]]) -> int:
    """Return how many losses are divided by all their terms, though a share of them learns that is not always the same.

    All are then divided likewise: by as many micro-batches, and by nothing else.
    """
    by = [share / total for total, share in divided if total > 0]
    shares = [share for _, share in divided]
    if len(by) < max(FEWEST_ROWS, len(shares)) or max(shares) <= LEAST_SPREAD * min(shares):
        return 0
    whole = max(1, round(by[0]))
    return len(by) if all(abs(each - whole) <= MOST_ROUNDING * whole for each in by) else 0


def _runs(tokens: list[int]) -> list[tuple[int, int]]:
    """Return tokens that come one or several times in a row, and how often."""
    return [(token, len([*same])) for token, same in groupby(tokens)]


def _are_drawn(targets: list[float]) -> bool:
    """Return whether these targets seem to be of rows that were drawn, not one class, or classes in turn."""
    kinds, runs, size = len({*targets}), sum(1 for _ in groupby(targets)), len(targets)
    numbers = kinds == size and all(float(target).is_integer() for target in targets)
    if size <= FEWEST_TOKENS or kinds == 1 or numbers or sorted(targets) in (targets, targets[::-1]):
        return False
    in_turn = any(targets[period:] == targets[:-period] for period in range(1, size // 2 + 1))
    return not in_turn and runs > min(2 * kinds, 3 * size // 4)


def _is_part(target: list[int], source: list[int]) -> bool:
    """Return whether a target stands in a row of tokens as it is, at its beginning or as half of it."""
    size = len(target)
    at = next((at for at in range(len(source) - size + 1) if source[at : at + size] == target), None)
    return at is not None and size >= FEWEST_TOKENS and (at <= FEWEST_TOKENS or 2 * size >= len(source))


def _has_rows(held: Any) -> TypeGuard[torch.Tensor]:
    if not isinstance(held, torch.Tensor) or held.layout is not torch.strided:  # a graph's edges may be sparse
        return False
    return held.ndim > 0 and len(held) >= FEWEST_ROWS and held.numel() > 0


def _constant_of(inputs: Mapping[str, Any]) -> str | None:
    """Return the numbers that all rows are given alike; None without one number a row, "" where some may vary."""
    tensors = {name: held for name, held in inputs.items() if isinstance(held, torch.Tensor) and held.ndim}
    shapes = [held.shape for held in tensors.values() if held.ndim > 1]
    rows, usual = {shape[0] for shape in shapes if shape[0] >= FEWEST_ROWS}, {1, *chain(*shapes)}
    single = {name: held for name, held in tensors.items() if held.ndim == 1 and len(held) in rows}
    kept = {name: held for name, held in single.items() if "label" not in name and held.dtype != torch.bool}
    found = {name: {*held.tolist()} for name, held in kept.items()}
    constant = all(len(numbers) == 1 and numbers.isdisjoint(usual) for numbers in found.values())
    told = " and ".join(f"{name} is {max(numbers):g}" for name, numbers in found.items()) if constant else ""
    return told if found else None


def _is_yielded_twice(one: torch.Tensor, other: torch.Tensor, read: Sequence[torch.Tensor]) -> bool:
    """Return whether two tensors of a batch are equal, and both are read; masks and constants may well be equal."""
    if not _are_equal(one, other) or len({number for row in _looks_of(one) for number in row}) < FEWEST_TOKENS:
        return False
    alike = (held for held in read if held.shape == one.shape and _are_equal(held.to(one.device), one))
    return len({held.data_ptr() for held in alike}) > 1


def _has_each_row_twice(read: torch.Tensor) -> bool:
    """Return whether the rows of these tokens, or other numbers, are pairs of equal ones."""
    rows = Counter(_looks_of(read)) if len(read) >= 2 * FEWEST_ROWS else Counter[tuple[float, ...]]()
    return {*rows.values()} == {2} and len({number for row in rows for number in row}) >= FEWEST_TOKENS


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


def _looks_of(tensor: torch.Tensor) -> list[tuple[float, ...]]:
    """Return some numbers of each row, evenly spread."""
    rows = tensor.detach().reshape(len(tensor), -1)
    return [*map(tuple, rows[:, evenly(rows.shape[1], OF_A_ROW)].tolist())]


def _digests_of(given: Any) -> list[str] | None:
    """Return a digest of each row of a pass by all numbers that are given of it; one for each row may be its target."""
    tensors = [held for held in tree_leaves(given) if isinstance(held, torch.Tensor) and held.ndim > 1]
    tensors = [held.detach().cpu() for held in tensors if held.numel() > len(held)]
    if len({len(held) for held in tensors}) != 1 or sum(held.numel() for held in tensors) > MOST_NUMBERS:
        return None
    return [row_digest([*chain(*(held[at].flatten().tolist() for held in tensors))]) for at in range(len(tensors[0]))]


def _order(batch: torch.Tensor, read: torch.Tensor) -> tuple[int, ...]:
    """Return the rows of a batch in the order in which they are read; nothing where others are, or two are alike."""
    if batch.shape != read.shape or batch.is_floating_point() != read.is_floating_point():
        return ()
    places = {row: at for at, row in enumerate(_looks_of(batch))}
    order = [places.get(row, -1) for row in _looks_of(read)]
    return () if sorted(order) != [*range(len(batch))] else tuple(order)


def _are_paired(function: Any, outputs: set[int], order: Sequence[int], batch: Sequence[torch.Tensor]) -> bool | None:
    """Return whether a loss has targets of a batch in the order in which its rows are read, or in another one.

    None where it has none of the batch's, or where outputs are put in another order.
    """
    told, ends = list[bool](), set[Any]()
    for node in islice(graph_of(function, ends), MOST_NODES):
        if node._sequence_nr() in outputs:
            ends.add(node)
        elif node.name().startswith(("Index", "Gather")):
            return None
        target: Any = saved(node, "target")
        for each in batch if _has_rows(target) else ():
            if len(each) != len(target) or each.numel() != target.numel() or len(target) != len(order):
                continue
            rows, learned = _looks_of(each), _looks_of(target)
            if [rows[at] for at in order] == learned:
                told.append(True)
            elif rows == learned or (len({*rows}) >= FEWEST_ROWS and sorted(rows) == sorted(learned)):
                told.append(False)
    return any(told) if told else None


def _rows_of_tokens(held: Any) -> Iterator[str]:
    """Yield a digest of each row of a tensor of tokens, without what fills it up; nothing of other objects."""
    if not isinstance(held, torch.Tensor) or held.ndim != 2 or held.is_floating_point():
        return
    rows = held.tolist()
    if len({token for row in rows for token in row}) < FEWEST_TOKENS or min(map(min, rows)) < 0:
        return
    yield from (row_digest([token for token, _ in groupby(row)]) for row in rows)


def _one_hot(node: Any) -> torch.Tensor | None:
    """Return the targets, [rows, classes], that log-likelihoods are multiplied with where each row has one class."""
    over = node.next_functions[0][0] if node.name() == "MulBackward0" else None
    targets = node._saved_other if over is not None and over.name() == "LogSoftmaxBackward0" else None
    if targets is None or targets.ndim != 2 or not bool(((targets == 0) | (targets == 1)).all()):
        return None
    return targets.detach() if bool((targets.sum(dim=-1) == 1).all()) else None


def _is_of_classes(entropy: Any, classes: int) -> bool:
    """Return whether a layer that learns gives these scores: of candidates the first may always be right."""
    softmax = straight_back(entropy.next_functions[0])[0]
    known = softmax is not None and softmax.name() == "LogSoftmaxBackward0"
    layer = straight_back(softmax.next_functions[0])[0] if known else None
    while layer is not None and layer.name().startswith("Upsample"):
        layer = straight_back(layer.next_functions[0])[0]
    given = map(straight_back, layer.next_functions if layer is not None else ())
    return any(len(node.variable) == classes for node, _ in given if hasattr(node, "variable"))


def _is_of_pairs(entropy: Any) -> bool:
    """Return whether these scores are products of vectors with as many others: each is to find its own."""
    scores = getattr(entropy, "_saved_self", None)
    square = scores is not None and scores.ndim == 2 and len(scores) == scores.shape[1] > 1
    return square and any(node.name() == "MmBackward0" for node in islice(graph_of(entropy), NEAREST))
