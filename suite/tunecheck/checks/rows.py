"""Rows as a training that is not ours is given them: mask, positions, micro-batches, and where answers end."""

from collections import Counter
from collections.abc import Sequence

from tunecheck.core.check import Check
from tunecheck.core.evidence import AnswersRated, PairsGiven, RowsGiven, RowSpan, RowSpans, Window
from tunecheck.core.finding import Finding
from tunecheck.core.premises import Premise
from tunecheck.core.row_spans import distinct
from tunecheck.core.trace import Trace

ENOUGH = 8
"""Rows of which a share says something."""
ALIKE = 0.9
"""Share of rows that have something in common which is then no accident."""
PUNCTUATION = ".!?:;,\"')]}"
"""What text ends in by itself, with no mark behind it."""


class MaskAndPositions(Check):
    """Every token of a row is attended to and no padding before it, and positions count up from each document's start.

    The attention mask may be 0 on padding alone: one token, repeated, at an end of the row. Positions that are given
    rise from token to token, and begin again at 0 where a packed row's next document does.
    """

    premises = frozenset({Premise.CAUSAL_LM, Premise.POSITIONS_FOLLOWED})
    applies_to = frozenset({"given_rows"})
    meaning = (
        "the attention mask was made from the labels, so that answers are learned without their prompt, or is all ones "
        "over padding on the left; or position_ids are constant, so that the order of the tokens is not seen"
    )
    remedy = "make the mask from the rows' lengths; leave position_ids out, or count them up within each document"

    def judge(self, trace: Trace) -> Finding:
        windows = trace.all(Window)
        problems = {kind: (w.step, row) for w in reversed(windows) for kind, row in w.inputs.items()}
        detail = "; ".join(
            f"step {step}: {kind} (in the row that begins {row})" for kind, (step, row) in problems.items()
        )
        rows = sum(len(window.rows) for window in windows)
        unnamed = 0 if problems else trace.one(RowsGiven).padded_before
        if unnamed:
            detail = f"{unnamed} of {rows} rows begin with a repeated token, as padding on the left that is attended to"
        detail = detail or f"{rows} rows, each attended to as a whole"
        wrong = len(problems) + bool(unnamed)
        return self.found(not wrong, detail, measured=wrong, limit=0, compared=rows)


class AnswersEnd(Check):
    """Answers that are learned end in an end token, so that the model learns to stop.

    Judged where prompts are masked, of rows that are not cut off. Rows that all end in one token of their own, answers
    of one length and answers that come again and again, as the names of classes, need no end. In no row may a further
    turn of the model's follow its answer and be empty.
    """

    premises = frozenset({Premise.CAUSAL_LM, Premise.ROWS_FOLLOWED, Premise.LABELS_KNOWN})
    applies_to = frozenset({"given_rows"})
    meaning = (
        "the template, the formatting function or the collator writes no end token, in all rows or in some: what the "
        "model generates goes on to its longest length; or add_generation_prompt=True begins a turn behind each answer"
    )
    remedy = (
        "append the tokenizer's eos_token, or the template's end of a turn, to every answer; generate after the "
        "training and see whether it stops"
    )

    max_open_share: float = 0.25
    """Of the answers: data sets hold some that were cut off before."""
    max_unfilled_share: float = 0.05
    """Of the model's turns: no template writes an empty one behind another; of a prompt behind each conversation there
    is one to as many answers as it has."""
    min_unfilled: int = 4
    """Such turns below which a cut may have made them."""

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(RowSpans)
        if not seen.end_tokens:
            return self.unjudged(
                "no end token is known: the Trainer has no processing_class, and neither has tunecheck.watch a "
                "tokenizer nor the model's configuration an eos_token_id",
                expected=True,
            )
        given = trace.one(RowsGiven)
        if given.turns_unfilled >= self.min_unfilled:
            share = given.turns_unfilled / given.turns
            detail = f"{given.turns_unfilled} of {given.turns} turns of the model's follow another one, and are empty"
            if share > self.max_unfilled_share:
                return self.found(False, detail, measured=share, limit=self.max_unfilled_share)
        rows = distinct(seen.rows)
        longest = max((row.tokens for row in rows), default=0)
        answers = [row for row in rows if row.learned and row.first > 1]
        if not answers:
            return self.unjudged("every row is learned whole, as running text is", expected=True)
        ended = sum(row.ended for row in answers)
        loose = [r for r in answers if not (r.ended or r.behind or r.tokens == longest)]
        whole = ended + len(loose)
        if whole < ENOUGH:
            return self.unjudged(f"{whole} answers that are not cut off say nothing of a share", expected=True)
        share = len(loose) / whole
        if share > self.max_open_share and (reason := _needs_no_end(loose)):
            return self.unjudged(reason, expected=True)
        detail = f"{len(loose)} of {whole} answers that are not cut off have no end token"
        return self.found(share <= self.max_open_share, detail, measured=share, limit=self.max_open_share)


def _needs_no_end(rows: Sequence[RowSpan]) -> str:
    """Return why these answers may do without an end token; "" where nothing says so."""
    last, times = Counter(row.last for row in rows).most_common(1)[0]
    if times >= ALIKE * len(rows) and last[-1:] not in PUNCTUATION:
        return f"the answers all end in {last!r}, which may be a mark of their own"
    if max(Counter(row.learned for row in rows).values()) >= ALIKE * len(rows):
        return "the answers all have as many tokens"
    if len({row.answer for row in rows}) <= len(rows) / 2:
        return "the answers are few and come again, as the names of classes do"
    return ""


class BatchAsConfigured(Check):
    """A micro-batch has as many rows as the arguments declare: the collator drops none of those that it is given.

    Of rows that are joined to one, whose positions begin again with each, all are counted.
    """

    applies_to = frozenset({"given_rows"})
    meaning = "the collator or compute_loss hands on a part of each batch's rows; the others never come"
    remedy = "compare what the collator is called with and what it returns, row by row"

    def judge(self, trace: Trace) -> Finding:
        declared = trace.run.rows_per_micro_batch
        if declared is None:
            return self.unjudged("no argument declares how many rows a micro-batch has", expected=True)
        seen, size = trace.one(RowSpans).rows, trace.one(RowsGiven).dataset_rows
        if size is not None and size < declared:
            return self.unjudged(f"the data set has {size} rows, fewer than a micro-batch", expected=True)
        taken = Counter[int]()
        for row in seen:
            taken[row.micro_batch] += row.documents
        counts = Counter(taken.values())
        if sum(row.stretches > 1 for row in seen) * 2 > len(seen):
            return self.unjudged("rows hold several answers each: they are packed", expected=True)
        if sum(counts.values()) < ENOUGH // 2:
            return self.unjudged(f"{sum(counts.values())} micro-batches say nothing of all", expected=True)
        (usual, times), *_ = counts.most_common(1)
        # a loader that fills its batches by tokens has other numbers each time, and an epoch's last batch is short
        short = usual < declared and times >= ALIKE * sum(counts.values())
        detail = f"{times} of {sum(counts.values())} micro-batches have {usual} rows, {declared} declared"
        return self.found(not short, detail, measured=usual, limit=declared)


class PairsDiffer(Check):
    """Of a chosen and a rejected answer the model is given two, which differ: else there is nothing to prefer.

    Neither begins with the prompt again. Of answers that are rated one by one not all are rated alike.
    """

    premises = frozenset()
    applies_to = frozenset({"pairs"})
    meaning = (
        "one column was taken for both, or prompts fill the longest length, so that the answers are cut off: the two "
        "gradients cancel, and the loss stays at ln 2; or both columns hold whole conversations, and a third one the "
        "prompts again; or each answer has the same label, as bool() of any text but the empty one gives"
    )
    remedy = (
        "compare the two columns row by row; raise max_length; give answers without their prompt, or no column of "
        "prompts; count the labels of the data set"
    )

    max_alike_share: float = 0.5
    """Of the pairs; data sets hold some whose answers are the same."""
    max_prompts_again_share: float = 0.5
    """Of the pairs whose answers begin with the whole prompt."""

    def judge(self, trace: Trace) -> Finding:
        for rated in trace.main.all(AnswersRated):
            if rated.rows < ENOUGH:
                return self.unjudged(f"{rated.rows} rated answers are in the data set", expected=True)
            detail = f"{rated.rows} answers are rated {' or '.join(rated.kinds)}"
            return self.found(len(rated.kinds) > 1, detail, measured=len(rated.kinds), limit=2, compared=rated.rows)
        seen = trace.main.all(PairsGiven)
        pairs = sum(window.pairs for window in seen)
        if pairs < ENOUGH:
            return self.unjudged(f"{pairs} pairs of answers were seen", expected=True)
        share = sum(window.alike for window in seen) / pairs
        again = sum(window.prompts_again for window in seen)
        detail = f"{share:.0%} of {pairs} pairs are twice the same answer"
        problems = range(again) if again > self.max_prompts_again_share * pairs else ()
        if problems:
            detail += f"; both answers of {again} pairs begin with the whole prompt, which stands before them already"
        fits = share <= self.max_alike_share
        return self.found(fits, detail, measured=share, limit=self.max_alike_share, problems=problems)
