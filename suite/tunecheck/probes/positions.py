"""At which positions the loss of early steps pulls, read off its gradient: whatever its formula, two things hold.

Nothing that comes out of padding may count, and no position may be asked for a token that it reads: at its own place,
or, where it is asked for the next one, behind it. That needs neither labels nor the loss: any model of tokens will do.
"""

import inspect
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeGuard
from weakref import ref

import torch
from torch.utils._pytree import tree_leaves, tree_map

from tunecheck.core.evidence import PositionGradients, RowsUsed
from tunecheck.core.premises import Premise
from tunecheck.models.layer_names import as_written, hides_calls, is_pretrained, text_config
from tunecheck.probes.reference import given as token_rows
from tunecheck.probes.reference import own_tokens, padded
from tunecheck.probes.reference.forwards import parts_of
from tunecheck.probes.reference.loss_graph import Scored, scores_of
from tunecheck.probes.reference.own_tokens import FEWEST_TELLING, Call, Raised, raised_by, tokens_and_numbers
from tunecheck.training.data import IGNORED, Batch
from tunecheck.training.events import EARLY_STEPS, Probe, at_work
from tunecheck.training.hooks import Hooks
from tunecheck.training.restore import as_found, random_state
from tunecheck.training.session import Session

MOST_CHOICES = 4
"""Scores of a position at most by which positions may be chosen: an answer's beginning and its end are two."""
BALANCED = 1e-3
"""Of a gradient's sizes, what its sum over the positions of a row is at most where a softmax was taken over them."""
FEWEST_TAGS = 3
"""Positions of a row that the loss uses, more than a summary and its neighbour."""
ROWS_AGAIN = 8
"""Rows at most of a pass that is made again."""


class PositionProbe(Probe[PositionGradients | RowsUsed]):
    """Hooks what models of transformers return, in the training's own passes."""

    def start(self, session: Session) -> None:
        """List the models: the one that trains, and those inside of it; and what their rows may be filled up with."""
        named = session.tokenizer, getattr(session.model, "generation_config", None)
        self._pads = [token for held in named for token in token_rows.special_tokens(held, "pad")]
        tokenizers = session.tokenizer, None  # None for the model's own
        ends = (token_rows.end_tokens(tokenizer, session.model)[0] for tokenizer in tokenizers)
        self._ends = torch.tensor(sorted(set[int]().union(*ends)), dtype=torch.long)
        self._pieces = getattr(session.tokenizer, "convert_ids_to_tokens", None)
        self._models = [module for module in session.model.modules() if is_pretrained(module)]
        by_name = session.run.holds(Premise.CAUSAL_LM) and as_written(session.entry) is not session.model
        self._part = session.entry if by_name else None
        """What is called of a model whose own scores are then not seen, as its forward is called by name."""
        self._tables = [m for m in session.model.modules() if getattr(m, "padding_idx", None) is not None]
        """Embeddings of a model of the script's own that say which of their tokens is padding."""
        self._around = [model for model in self._models if sum(map(is_pretrained, model.modules())) > 1]
        """Those whose padding is looked at in the model inside of them."""
        # a causal model of transformers is looked at with rows of our own; of several processes all would have to call
        self._looks_ahead = not session.run.holds(Premise.CAUSAL_LM) and session.processes == 1
        self._kept: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]] = []
        """Tokens of a model that learns its next ones, the positions that the loss uses, and their mask."""
        self._mixes_unknown = session.processes == 1
        self._mixes: partial[dict[str, int]] | None = None
        """Whether nobody has looked yet if the rows of a batch depend on each other, and what tells it of a pass."""
        self._turned = False
        """Whether rows are seen to be columns: a model of the script's own may read [positions, rows]."""

    def step_begin(self, session: Session, step: int, window: object) -> None:
        if step >= EARLY_STEPS:
            return
        self._counts = Counter(padded=0, raising=0, raising_own=0)
        """By fields of PositionGradients."""
        self._counted: list[dict[str, int]] = []
        """The same of each pass, about the tokens that its positions are asked for."""
        self._at_padding = self._everywhere = 0.0
        self._padding: dict[torch.Size, torch.Tensor] = {}
        """Positions of padding in the last rows of each shape."""
        self._before = len(self._kept)
        self._chosen_among = self._guessed = False
        self._looked_up_masks: dict[torch.Size, torch.Tensor] = {}
        self._own_call: Call | None = None
        self._rows_read: list[torch.Tensor] = []
        """Tokens that embeddings of a model of the script's own have looked up, until its first attention."""
        self._by_graph = self._by_model = False
        """Whether the loss's graph told of the scores, so that what the model returns is not looked at."""
        self._asked: Raised | None = None
        """A pass of which that is told when the step is over."""
        self._passed: dict[int, torch.Tensor] = {}
        """What a part of a model has made of its positions last, in the pass that is under way, by the model's id."""
        for model in self._models:
            for part in model.children() if model not in self._around else ():
                self.hooks.after(part, partial(self._keep_passed, id(model)))
            self.hooks.after(model, self._returned, with_kwargs=True)
        if self._models:
            self.hooks.after(session.model if session.entry is None else session.entry, self._returned_choices)
        else:
            self.hooks.after(session.called, self._returned_scores, with_kwargs=True)
            self.hooks.after(session.called, self._returned_places)
            attentions = [part for part in session.model.modules() if isinstance(part, torch.nn.MultiheadAttention)]
            for part in attentions:
                self.hooks.before(part, self._attends, with_kwargs=True)
            for part in session.model.modules() if attentions else ():
                if isinstance(part, torch.nn.Embedding):
                    self.hooks.before(part, self._reads_rows)
            for table in self._tables:
                self.hooks.before(table, self._looked_up)
        if hides_calls(session.called) and not step:
            self.hooks.after(session.called, self._see_uncompiled, with_kwargs=True)
        self._has_hooks = False
        """Whether the script's own code is called in the backward pass, so that no part of that is made twice."""
        self.hooks.function(torch.Tensor, "register_hook", before=self._hooked)
        self.hooks.backward(before=partial(self._differentiated, ref(session.model)))

    def backward_end(self, session: Session, step: int) -> None:
        self.hooks.remove()
        if step >= EARLY_STEPS:
            return
        self._rows_read = []
        own_call = None if self._by_graph else self._own_call
        counts = self._counts
        counts.update(self._worst())
        if own_call is not None and 2 * counts["raising_own"] > counts["raising"] and not own_call.copies():
            counts["raising"] = counts["raising_own"] = 0  # the model is to give back what it need not see
        if self._asked is not None:
            self._looks_ahead = False
            counts.update(self._asked.ahead())
        if self._mixes is not None:
            counts.update(self._mixes())
            self._mixes_unknown, self._mixes = False, None
        if session.run.holds(Premise.CAUSAL_LM):
            self._compare_with_labels(session.window)
        # where one of the positions is chosen padding is not to be, and a scaler may be too high for 16 bit
        if self._chosen_among or not math.isfinite(self._everywhere):
            counts["padded"], self._at_padding, self._everywhere = 0, 0.0, 0.0
        share = self._at_padding / self._everywhere if self._everywhere else 0.0
        self.emit(PositionGradients(step=step, padding_share=share**0.5, padding_guessed=self._guessed, **counts))

    def end(self, session: Session) -> None:
        if not (rows := [row for kept in self._kept for row in _rows_used(*kept)]):
            return
        seen = RowsUsed(
            rows=len(rows),
            beginnings=sum(row.is_beginning for row in rows),
            begun_late=token_rows.begun_late({row.before_answer for row in rows} - {()}),
            prompts_share=token_rows.prompts_share([row.tokens if row.is_whole else None for row in rows]),
            # a model of transformers may have written its rows itself, up to some length
            **token_rows.ends_of([] if self._models else rows),
        )
        self.emit(seen)

    def _keep_passed(self, model: int, _part: Any, _args: Any, out: Any) -> None:
        for found in filter(_learns, parts_of(out)):
            self._passed[model] = found

    def _returned(self, model: Any, args: Any, given: dict[str, Any], out: Any) -> None:
        if not torch.is_grad_enabled():
            return
        # of an encoder and a decoder together each is looked at by itself, with a mask of its own
        logits = getattr(out, "logits", None)
        hidden = getattr(out, "last_hidden_state", None if model in self._around else logits)
        if isinstance(out, tuple) and model not in self._around and not model.config.is_encoder_decoder:
            hidden = next(filter(_learns, out), None)  # return_dict=False
        passed = self._passed.pop(id(model), None)
        if isinstance(out, torch.Tensor) and out.ndim == 2:  # a class of the script's own, which returns a summary
            hidden = passed
        hidden = None if hasattr(out, "encoder_last_hidden_state") else hidden
        named = {**inspect.signature(model.forward).bind_partial(*args, **given).arguments, **given}
        read: Any = named.get("input_ids", next(iter(args), None))
        mask = named.get("attention_mask")
        call, scores = Call(model, args, given, read), logits if isinstance(logits, torch.Tensor) else hidden
        if isinstance(scores, torch.Tensor):  # of a model on several GPUs the last one's
            read, mask = (each.to(scores.device) if isinstance(each, torch.Tensor) else each for each in (read, mask))
        if isinstance(read, torch.Tensor):
            self._by_model |= logits is not None or (hidden is not None and model is not self._part)
            if model not in self._around and _reads(model, {False}):
                real = padded.mask_by_ends(model, read, self._pads)
                self._look_at_mask(mask, padded.filled(read) if real is None and mask is not None else real)
            if mask is None or (_of_positions(mask, read[..., None]) and mask.all()):
                decodes = given.get("encoder_hidden_states") is not None and mask is None
                seen = (padded.mask_of_decoder if decodes else padded.mask_by_ends)(model, read, self._pads)
                mask = mask if seen is None else seen
            if _learns(hidden) and _of_positions(read, hidden):
                real = padded.tokens(read, mask)
                for causally, add in ((True, self._add_unseen), (False, partial(self._add_marked, read))):
                    if _reads(model, {causally}):
                        self.hooks.gradient(hidden, partial(add, real))
        if _learns(hidden) and _of_positions(mask, hidden):
            self._guessed |= isinstance(read, torch.Tensor) and self._holds_others(model, mask, read)
            self._add_at_padding(mask, hidden)
        if not _learns(logits):
            return
        vocabulary = int(getattr(text_config(model.config), "vocab_size", 0)) or math.inf
        if model.config.is_encoder_decoder:  # that makes its decoder's tokens of the labels, unless it is given them
            decoded: Any = given.get("decoder_input_ids")
            call = replace(call, read=decoded)
        kept = named.get("logits_to_keep", 0)
        if isinstance(kept, int) and kept == logits.shape[1] and isinstance(call.read, torch.Tensor):
            call = replace(call, read=call.read[:, -kept:])
            mask = mask[:, -kept:] if isinstance(mask, torch.Tensor) and mask.ndim == 2 else None
        if _of_positions(call.read, logits) and logits.shape[-1] >= vocabulary:
            read = call.read.to(logits.device)
            self.hooks.gradient(logits, partial(self._add_raised, call))
            if call.is_of_read:
                self.hooks.gradient(logits, lambda gradient: self._keep(read, padded.used(gradient), mask))
            if _of_positions(mask, logits) and not model.config.is_encoder_decoder:
                self.hooks.gradient(logits, partial(self._add_asked_behind, mask, read))

    def _reads_rows(self, _table: Any, args: Any) -> None:
        """Keep the rows of tokens that an embedding is about to look up."""
        self._rows_read += [part for part in args[:1] if isinstance(part, torch.Tensor) and part.ndim == 2]

    def _attends(self, _attention: Any, args: Any, given: dict[str, Any]) -> None:
        """Look at the positions that the first attention of a pass hides, where its tokens are padded."""
        hidden = given.get("key_padding_mask", args[3] if len(args) > 3 else None)
        if isinstance(hidden, torch.Tensor) and torch.is_grad_enabled():
            shown = hidden >= 0 if hidden.is_floating_point() else hidden == 0
            found = (padded.filled(read) for read in self._rows_read if read.shape == hidden.shape)
            if known := [real for real in found if real is not None]:  # of two texts the one that the mask fits
                self._look_at_mask(shown, min(known, key=lambda real: int((real & ~shown).sum())))
            self._rows_read = []

    def _look_at_mask(self, mask: torch.Tensor | None, real: torch.Tensor | None) -> None:
        """Count padded positions, those that are not `real`, those of them that the model's mask shows, and real ones.

        If nothing tells what is real, the mask's own ends are the padding.
        """
        real = ~padded.outside(mask) if real is None and mask is not None and mask.ndim == 2 else real
        if real is not None and (mask is None or mask.shape == real.shape):
            shown = torch.ones_like(real) if mask is None else mask != 0
            self._counts.update(padding_both_ways=int((~real).sum()), padding_shown=int((~real & shown).sum()))
            text = real[:, :-1] & real[:, 1:]  # the last one may be padding that counts as a row's end
            self._counts.update(text_both_ways=int(text.sum()), text_hidden=int((text & ~shown[:, :-1]).sum()))

    def _returned_choices(self, _model: Any, _args: Any, out: Any) -> None:
        """Look at scores by which one of the positions may be chosen, as where an answer begins in a text."""
        if not torch.is_grad_enabled():
            return
        for scores in parts_of(out):
            if not isinstance(scores, torch.Tensor) or not scores.requires_grad:
                continue
            padding = self._padding.get(scores.shape[:2])
            if padding is not None and (scores.ndim == 2 or (scores.ndim == 3 and scores.shape[-1] <= MOST_CHOICES)):
                self.hooks.gradient(scores, partial(self._see_choice, padding))

    def _see_choice(self, padding: torch.Tensor, gradient: torch.Tensor) -> None:
        """Note whether a softmax was taken over positions: what raises one of them lowers the others by as much.

        Of those that are padding it lowers all, unlike the numbers of an embedding that are as many as positions.
        """
        found = gradient.detach().float()
        sizes = found.abs().sum(dim=1)
        at_padding = found * padding.to(found.device).view(*padding.shape, *[1] * (found.ndim - 2))
        one_way = (at_padding.amin(dim=1) >= 0) | (at_padding.amax(dim=1) <= 0)
        if bool((sizes > 0).any()) and bool(((found.sum(dim=1).abs() <= BALANCED * sizes) & one_way).all()):
            self._chosen_among = True

    def _returned_scores(self, module: Any, args: Any, given: dict[str, Any], out: Any) -> None:
        """Look at what a model of the script's own returns, where that is scores over the tokens that it is given."""
        if self._mixes_unknown and torch.is_grad_enabled():
            self._mixes = partial(own_tokens.rows_mixed, module, args, given)
        found = tokens_and_numbers(args, given, out) if torch.is_grad_enabled() else None
        if found is None or not all(part.requires_grad for part in found[1]):
            return
        read, parts = found
        call = self._own_call = Call(module, args, given, read, self._turned)
        padding, pulls = self._padding_of(call), dict[int, torch.Tensor]()

        def look(at: int, gradient: torch.Tensor) -> None:
            pulls[at] = gradient
            if self._by_graph or len(pulls) < len(parts):
                return
            whole = [pulls.pop(number) for number in range(len(parts))]
            gradient = torch.cat(whole, dim=1) if len(whole) > 1 else gradient
            if padding is not None:
                self._add_norms(padding, call.by_row(gradient))
            self._add_raised(call, gradient)

        for at, part in enumerate(parts):
            self.hooks.gradient(part, partial(look, at))

    def _looked_up(self, table: Any, args: Any) -> None:
        """Note which of the tokens that an embedding is about to look up are padding, as it says."""
        read = next(iter(args), None)
        # of few kinds, as segments are, the first one may be called padding and be none
        if isinstance(read, torch.Tensor) and read.ndim == 2 and len({*read.flatten().tolist()}) > MOST_CHOICES:
            real = self._looked_up_masks.get(read.shape, False)
            self._looked_up_masks[read.shape] = real | (read != table.padding_idx)

    def _returned_places(self, _module: Any, _args: Any, out: Any) -> None:
        """Look at what a model of the script's own returns for each place, where it looked up padding."""
        masks, self._looked_up_masks = self._looked_up_masks, {}
        for found in parts_of(out):
            mask = masks.get(found.shape[:2]) if isinstance(found, torch.Tensor) and found.requires_grad else None
            if mask is not None and not mask.all() and torch.is_grad_enabled():
                self._guessed = True
                self._add_at_padding(mask, found)

    def _hooked(self, tensor: torch.Tensor, hook: Any) -> None:
        self._has_hooks |= tensor.grad_fn is not None and getattr(hook, "__module__", "") != Hooks.__module__

    def _differentiated(self, held: "ref[Any]", tensors: Any, *_: Any, **__: Any) -> None:
        """Look at the scores of a loss that is about to be differentiated, whatever the model returns."""
        if self._by_model or self._has_hooks or not isinstance(tensors, torch.Tensor) or tensors.numel() != 1:
            return
        model = held()  # a hook that is taken back stays, in a cycle of its own, until it is collected
        with at_work(), as_found(model), random_state(tensors.device):
            for ways in scores_of(tensors):
                self._look_at_ways(model, ways)

    def _see_uncompiled(self, model: Any, args: Any, given: dict[str, Any], _out: Any) -> None:
        """Look at the scores of the model's own loss in a pass that is not compiled: what is compiled has no graph."""
        tensors = [value for value in tree_leaves((args, given)) if isinstance(value, torch.Tensor) and value.ndim]
        if self._by_graph or not torch.is_grad_enabled() or not tensors:
            return
        few = {id(value): value[:ROWS_AGAIN] for value in tensors if len(value) == len(tensors[0])}
        args, given = tree_map(lambda value: few.get(id(value), value), (args, given))
        with at_work(), as_found(model), random_state(tensors[0].device):
            loss = None
            with suppress(Exception):  # a model may refuse fewer rows, as one that carries a state of each
                loss = next((part for part in parts_of(model(*args, **given)) if getattr(part, "ndim", 1) == 0), None)
            for ways in scores_of(loss) if loss is not None and loss.requires_grad else ():
                self._look_at_ways(model, ways)

    def _look_at_ways(self, model: Any, ways: Sequence[Scored]) -> None:
        """Look at scores by the tokens that they are to predict, else by those that their model may just copy."""
        calls = [(way, Call(model, (), {}, way.read, turned)) for way in ways for turned in (False, True)]
        found = [(way, Raised(call, way.gradient)) for way, call in calls]
        found = [(way, raised) for way, raised in found if raised.ask_for_later or raised.call.turned is self._turned]
        found.sort(key=lambda pair: (pair[1].ask_for_later, pair[1].own), reverse=True)
        if found:
            self._counts.update(found[0][1].masked)
        self._by_graph |= bool(found)
        for way, raised in found:
            if 2 * raised.own > raised.telling and not way.copies():
                continue
            self._turned = raised.call.turned
            self._look_behind(way, turned=self._turned)
            if (padding := self._padding_of(raised.call)) is not None:
                self._add_norms(padding, raised.call.by_row(way.gradient))
            self._counted.append(raised.counts)
            if raised.ask_for_next:
                self._keep(raised.rows, padded.used(raised.call.by_row(way.gradient)))
            if self._looks_ahead and raised.ask_for_next:
                self._looks_ahead = False
                self._counts.update(raised.ahead(way))
            return

    def _look_behind(self, way: Scored, *, turned: bool) -> None:
        """Count tokens as `_add_unseen` does; those behind the last used position where it sees none of them."""
        used, read = padded.used(way.gradient).view_as(way.read), way.read
        used, read = (used.t(), read.t()) if turned else (used, read)
        at = int(used.any(dim=0).nonzero().max()) if bool(used.any()) else read.shape[1]
        behind = at + 1 < read.shape[1] and bool(used[:, at].all())
        seen = way.rows_that_see(at, turned=turned) if behind else None
        if at < read.shape[1] and (seen is not None or not behind):
            real = padded.tokens(read, None)
            unseen = 0 if seen is None or bool(seen.any()) else int(real[:, at + 1 :].sum())
            self._counts.update(tokens=int(real.sum()), unseen=unseen)

    def _padding_of(self, call: Call) -> torch.Tensor | None:
        """Return the positions of padding in rows that are seen to be padded; None in others."""
        mask = padded.mask_by_ends(call.module, call.rows, self._pads)
        if mask is None and (fill := padded.fill_of(call.rows)) is not None:
            mask = padded.mask_by(fill, call.rows)
            self._guessed = mask is not None
        if mask is None:
            return None
        self._padding[mask.shape] = padding = padded.outside(mask)
        return padding

    def _holds_others(self, model: Any, mask: torch.Tensor, read: torch.Tensor) -> bool:
        """Return whether none of what the mask hides is a known token of padding, as where queries end in [MASK]."""
        known = [*self._pads, *token_rows.special_tokens(model.config, "pad", "eos")]
        if read.shape != mask.shape or not known or not bool((padding := padded.outside(mask)).any()):
            return False
        return not bool(torch.isin(read[padding], torch.tensor(known, device=read.device)).any())

    def _add_at_padding(self, mask: torch.Tensor, tensor: torch.Tensor) -> None:
        """Sum up the gradients by what is computed at each place."""
        self._padding[mask.shape] = padding = padded.outside(mask)
        self.hooks.gradient(tensor, partial(self._add_norms, padding))

    def _add_norms(self, padding: torch.Tensor, gradient: torch.Tensor) -> None:
        self._counts["padded"] += int(padding.sum())
        placed = gradient.detach().reshape(*padding.shape, -1)
        squares = torch.linalg.vector_norm(placed, dim=-1, dtype=torch.float32).square()
        self._at_padding += float(squares[padding.to(squares.device)].sum())
        self._everywhere += float(squares.sum())

    def _add_unseen(self, real: torch.Tensor, gradient: torch.Tensor) -> None:
        """Count tokens, and those behind the last position of their row that the loss uses: it depends on none."""
        used = padded.used(gradient)
        real = real & used.any(dim=1, keepdim=True)
        self._counts.update(tokens=int(real.sum()), unseen=int((real & ~padded.up_to_last(used)).sum()))

    def _add_marked(self, read: torch.Tensor, real: torch.Tensor, gradient: torch.Tensor) -> None:
        """Count rows between two marks that the loss uses in part, and those used from or up to one mark alone."""
        used, rows = padded.used(gradient) & real, torch.arange(len(read), device=read.device)
        first, last = real.int().argmax(dim=1), real.shape[1] - 1 - real.flip(1).int().argmax(dim=1)
        alike = [read[rows, end] == read[rows, end].mode().values for end in (first, last)]
        number, tokens = used.sum(dim=1), real.sum(dim=1)
        marked = alike[0] & alike[1] & (number >= FEWEST_TAGS) & (3 * number > tokens) & (number < tokens)
        second, third = (used[rows, (first + more).clamp(max=last)] for more in (1, 2))
        early = used[rows, first] & ~used[rows, last] & ~used[rows, last - 1]
        late = third & ~used[rows, first] & ~second
        found = {"marked": marked, "tags_early": marked & early, "tags_late": marked & late}
        self._counts.update({name: int(rows.sum()) for name, rows in found.items()})
        if (pieces := self._pieces) is None:
            return
        of_marked = (held[marked].tolist() for held in (read, used, first, last))
        for ids, learned, begin, end in zip(*of_marked, strict=True):
            told = token_rows.counted_by_words(pieces(ids[begin + 1 : end]), learned[begin + 1 : end])
            self._counts.update(split=told is not None, tags_counted=bool(told))

    def _keep(self, read: torch.Tensor, used: torch.Tensor, mask: torch.Tensor | None = None) -> None:
        """Keep these rows where they are: to read them waits for a GPU."""
        self._kept.append((read.detach().clone(), used, None if mask is None else mask.detach().clone()))

    def _add_asked_behind(self, mask: torch.Tensor, read: torch.Tensor, gradient: torch.Tensor) -> None:
        """Count rows with padding behind them that ends no text, and those whose last token is asked for it."""
        last = padded.outside(mask)[:, 1:] & (mask[:, :-1] != 0) & ~torch.isin(read[:, 1:], self._ends.to(read.device))
        found, padding = gradient.detach()[:, :-1][last], read[:, 1:][last]
        if len(found):
            telling, raised = raised_by(found)
            self._counts.update(followed=len(found), asked_behind=int((telling & (raised == padding)).sum()))

    def _compare_with_labels(self, window: Sequence[Batch]) -> None:
        """Count answers behind a prompt that is not learned, and those used from one position too late, or too far."""
        for read, used, _ in self._kept[self._before :]:
            of_shape = (b for b in window if b.input_ids.shape == read.shape)
            if (batch := next((b for b in of_shape if b.input_ids.equal(read.to(b.labels.device))), None)) is None:
                continue
            for labels, places in zip(batch.labels, used, strict=True):
                learned = (labels != IGNORED).nonzero().flatten().tolist()
                if len(learned) < 2 or learned[0] < 2 or bool(places[: learned[0] - 1].any()):
                    continue
                first, last = learned[0], learned[-1]
                late = not places[first - 1] and bool(places[first])
                self._counts.update(answers=1, used_late=late, used_behind=bool(places[last]))

    def _add_raised(self, call: Call, gradient: torch.Tensor) -> None:
        """Count the positions whose next token is another, and those of them that are to read their own token."""
        found = Raised(call, gradient)
        if call is self._own_call and not found.ask_for_later:  # unless its rows are columns
            turned = Raised(replace(call, turned=not call.turned), gradient)
            if turned.ask_for_later:
                found, self._own_call, self._turned = turned, turned.call, turned.call.turned
        if found.call is self._own_call and found.ask_for_next:
            self._add_unseen(padded.tokens(found.rows, None), found.call.by_row(gradient))
            self._keep(found.rows, padded.used(found.call.by_row(gradient)))
        self._counted.append(found.counts)
        self._counts.update(found.masked)
        if self._looks_ahead and self._asked is None and found.ask_for_next and call.is_of_read:
            self._asked = found

    def _worst(self) -> dict[str, int]:
        """Return what was counted in the pass with most positions that ask for a token they need not predict."""
        if telling := [counts for counts in self._counted if counts["raising"] >= FEWEST_TELLING]:
            return max(telling, key=lambda counts: max([*counts.values()][1:]) / counts["raising"])
        return sum(map(Counter, self._counted), Counter())


def _rows_used(read: torch.Tensor, used: torch.Tensor, mask: torch.Tensor | None) -> list[token_rows.Row]:
    """Return the rows of which the loss uses a position, with the tokens that it is asked for there as labels."""
    labels = torch.full_like(read, IGNORED)
    labels[:, 1:] = torch.where(used[:, :-1], read[:, 1:], IGNORED)
    rows = zip(*(part.tolist() for part in (read, labels, padded.tokens(read, mask).int())), strict=True)
    return [token_rows.Row(*row) for row in rows if {*row[1]} != {IGNORED}]


def _learns(tensor: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(tensor, torch.Tensor) and tensor.requires_grad and tensor.ndim == 3


def _of_positions(values: Any, tensor: torch.Tensor) -> TypeGuard[torch.Tensor]:
    """Return whether these are one value for each of the tensor's positions."""
    return isinstance(values, torch.Tensor) and values.shape == tensor.shape[:2]


def _reads(model: Any, causally: set[bool]) -> bool:
    """Return whether this is what the attentions of a transformers model say of whether they hide later positions."""
    said = {module.is_causal for module in model.modules() if isinstance(getattr(module, "is_causal", None), bool)}
    return said == causally
