"""The rows that a training is given: split, template, order, masks and micro-batches, and whether they are whole."""

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import takewhile

from tunecheck.core import evidence
from tunecheck.core.check import Check, enough, required, some
from tunecheck.core.errors import NotApplicable
from tunecheck.core.finding import Finding
from tunecheck.core.premises import ROWS_KNOWN, Premise
from tunecheck.core.row_spans import ALIKE, ENOUGH, ROWS_OF_AN_ORDER, row_problems
from tunecheck.core.trace import Trace


class HeldoutIsDisjoint(Check):
    """Held-out rows and training rows are disjoint, and each evaluation reads its own split.

    Every token id also has a row in the embedding matrix.
    """

    needs = frozenset({"suite_rows"})
    meaning = "The split was made after rows were repeated or mixed. The held-out loss then measures memorisation."
    remedy = "Split before any other processing, by instruction rather than by row number."

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(evidence.DataSplit)
        problems = [f"{len(seen.shared)} held-out rows are in training: {some(seen.shared)}"] if seen.shared else []
        if seen.misplaced:
            problems.append(f"evaluations use rows of another split, or other labels: {some(seen.misplaced)}")
        if seen.largest_token_id >= seen.embedding_rows:
            problems.append(f"token id {seen.largest_token_id} is beyond the embedding's {seen.embedding_rows} rows")
        repeated = f" ({len(seen.duplicates)} repeat an earlier one)" if seen.duplicates else ""
        detail = "; ".join(problems) or f"{seen.train_rows} training rows{repeated}, {seen.heldout_rows} held out"
        return self.at_most(len(seen.shared) or len(problems), 0, detail, compared=seen.heldout_rows)


class TokensMatchTemplate(Check):
    """Every row is a data set row rendered by the chat template, with only the answer and its end token supervised."""

    needs = frozenset({"suite_rows"})
    meaning = """The collator shifts labels. The end token is masked together with padding. The template adds a second
    start token. Prompt or padding is supervised. The answer is truncated."""
    remedy = "Compare the example with its source. Leave the label shift to the loss. Mask padding by attention_mask."

    def judge(self, trace: Trace) -> Finding:
        windows = trace.all(evidence.Window)
        rows = sum(len(window.rows) for window in windows)
        problems = [*row_problems(windows)]
        for seen in trace.records(evidence.TokensReplaced):
            problems.append(f"step {seen.step}: the model reads tokens that no batch holds: {seen.read!r}")
        return self.unless(problems, f"{rows} rows audited", compared=rows)


MASKED = "Label masking removes answers or keeps prompts."
OTHERS_COUNTED = "The trainer counts other tokens, which scales the loss and the gradient, or inflates throughput."
FIRST_COUNTED = (
    "The library counts each row's first label, which no position predicts, so that loss and gradient are too small. "
    "transformers 4.57 and 5.9 do so for every model, 5.23 for GPT2LMHeadModel (huggingface/transformers#46204)."
)
BY_LIBRARY = "the library counts so for this class of models, and no line of the script does"


class SupervisedTokens(Check):
    """Every optimizer step supervises exactly the answer tokens of its rows, and the trainer reports that count."""

    needs = ROWS_KNOWN | {Premise.EVERY_ROW_SEEN, Premise.TOKENS_REPORTED}
    meaning = f"{MASKED} {OTHERS_COUNTED} {FIRST_COUNTED}"
    remedy = """Compare the count with the number of answer tokens. If the library counts each row's first label, set
    that label to -100 in the collator, or update the library."""

    def judge(self, trace: Trace) -> Finding:
        reported = {step.step: step for step in trace.steps}
        problems = {}
        for window in trace.all(evidence.Window):
            if window.supervised_tokens != window.expected_supervised_tokens:
                words = f"{window.supervised_tokens}, expected {window.expected_supervised_tokens}"
                problems[f"step {window.step}: {words}"] = MASKED
            elif (step := reported.get(window.step)) is not None:
                if step.supervised_tokens != window.supervised_tokens:
                    counted = f"{window.supervised_tokens}, the trainer counts {step.supervised_tokens}"
                    first = trace.first_labels_counted(window.step) > 0
                    counted += ", with each row's first label" if first else ""
                    problems[f"step {window.step}: {counted}"] = FIRST_COUNTED if first else OTHERS_COUNTED
                if step.tokens != window.tokens:
                    counted = f"{window.tokens} tokens without padding, the trainer counts {step.tokens}"
                    problems[f"step {window.step}: {counted}"] = OTHERS_COUNTED
        if not (total := sum(window.supervised_tokens for window in trace.all(evidence.Window))):
            problems["0 supervised tokens in all: there is nothing to learn"] = MASKED
        meant = BY_LIBRARY if {*problems.values()} == {FIRST_COUNTED} else ""
        return self.unless(problems, f"{total} supervised tokens", most=3, meant=meant)


class BatchesDiffer(Check):
    """Every micro-batch of the first epoch is different, unless the data set repeats rows."""

    needs = frozenset({"suite_rows"})
    meaning = "The data loader restarts at each step, or a seed is reset. The model then memorises one batch."
    remedy = "Create the loader's iterator once, outside the training loop. Do not reseed inside the loop."

    def judge(self, trace: Trace) -> Finding:
        windows, seen = trace.all(evidence.Window), trace.one(evidence.DataSplit)
        per_epoch = max(1, seen.train_rows // max(1, len({*windows[0].rows} - {"canary"})))
        first_epoch = [window for window in windows if window.step < per_epoch]
        digests = [digest for window in first_epoch for digest in window.digests]
        required(len(digests) != 1, "only one micro-batch in the first epoch: it has no other to equal")
        alike = len(digests) - len(set(digests))
        prescribed = []  # rows of each micro-batch, each named by the first row of its content
        for window in first_epoch:
            due = [seen.duplicates.get(row, row) for row in window.expected_rows]
            width = max(1, len(due) // max(1, len(window.digests)))
            prescribed += [tuple(due[at : at + width]) for at in range(0, len(due), width)]
        by_data = min(alike, len(prescribed) - len(set(prescribed)))
        repeated = alike - by_data
        detail = f"{len(digests)} micro-batches, {repeated} of them repeated"
        detail += f"; {by_data} more repeat because the data set repeats their rows" if by_data else ""
        return self.at_most(repeated, 0, detail, compared=len(digests))


class RowOrder(Check):
    """Each optimizer step trains on the rows that the seed and the step number prescribe.

    The rows come from the files that the trace names. Every row comes once per epoch, and each epoch has another order.
    """

    needs = frozenset({"suite_rows"})
    meaning = "The order depends on more than the seed. Rows are skipped or replayed. Another file was read."
    remedy = "Derive the row order from the seed and the epoch alone."

    def judge(self, trace: Trace) -> Finding:
        windows, split = trace.all(evidence.Window), trace.one(evidence.DataSplit)
        problem = _epochs(windows, split.train_rows)
        if (read := split.dataset_sha256) != (named := trace.one(evidence.Dataset).sha256):
            problem = f"the files read have the digest {read[:12]}, those of the trace {named[:12]}"
        detail = problem or f"{len(windows)} steps with the prescribed rows"
        if wrong := [window for window in windows if window.rows != window.expected_rows]:
            detail = f"step {wrong[0].step}: rows {some(wrong[0].rows)}, prescribed {some(wrong[0].expected_rows)}"
        rows = sum(len(window.rows) for window in windows)
        return self.at_most(len(wrong), 0, detail, problems=[problem] if problem else (), compared=rows)


def _epochs(windows: list[evidence.Window], train_rows: int) -> str:
    """Return what is wrong with the epochs, by their rows alone; empty when nothing is.

    Only the windows before the first gap count: of a long run not all are audited.
    """
    audited = takewhile(lambda numbered: numbered[0] == numbered[1].step, enumerate(windows))
    rows = [row for _, window in audited for row in window.rows if row != "canary"]
    epochs = [rows[first : first + train_rows] for first in range(0, len(rows), max(1, train_rows))]
    for number, epoch in enumerate(epochs):
        if len(set(epoch)) != len(epoch):
            return f"epoch {number}: {len(epoch) - len(set(epoch))} rows come more than once"
    whole = [tuple(epoch) for epoch in epochs if len(epoch) == train_rows >= ROWS_OF_AN_ORDER]
    return "two epochs have the same order" if len(set(whole)) != len(whole) else ""


BEGIN_LATER = "Positions are counted from 1, or padding on the left is counted, too."
MAY_BEGIN_LATER = "rows may go on behind a cache, or begin at positions that are drawn"


class MaskAndPositions(Check):
    """The attention mask covers every token and no padding, and positions count up from each document's start.

    The mask may be 0 only on padding: one token, repeated, at either end of the row. Explicit position ids rise by one
    per token, from 0. In a packed row they restart at 0 with each document.
    """

    needs = frozenset({"user_code", Premise.CAUSAL_LM, Premise.POSITIONS_FOLLOWED})
    meaning = f"""The attention mask was built from the labels, so that answers do not attend to their prompt. Or it is
    all ones over left padding. position_ids are constant. {BEGIN_LATER}"""
    remedy = "Build the mask from the row lengths. Omit position_ids, or count them up within each document."

    def judge(self, trace: Trace) -> Finding:
        windows = trace.all(evidence.Window)
        problems = {kind: (w.step, row) for w in reversed(windows) for kind, row in w.inputs.items()}
        told = [f"step {step}: {kind} (row beginning {row})" for kind, (step, row) in problems.items()]
        rows, given = sum(len(window.rows) for window in windows), trace.one(evidence.RowsGiven)
        if not told and (first := given.positions_from):
            detail = f"the positions of all {rows} rows begin at {first} or later"
            return self.at_most(first, 0, detail, meant=MAY_BEGIN_LATER, causes=[BEGIN_LATER])
        if not told and (unnamed := given.padded_before):
            told = [f"{unnamed} of {rows} rows begin with a repeated token: left padding that is attended to"]
        return self.unless(told, f"{rows} rows, all fully attended to", compared=rows)


class BatchAsConfigured(Check):
    """A micro-batch has as many rows as the arguments declare.

    Packed rows count as several: one for each restart of the positions.
    """

    needs = frozenset({"user_code", Premise.CAUSAL_LM})
    meaning = "The collator or compute_loss passes on only part of each batch. The other rows are never trained."
    remedy = "Print the number of rows that enter the collator and the number that leave it."

    def judge(self, trace: Trace) -> Finding:
        declared = required(trace.run.rows_per_micro_batch, "no argument declares the micro-batch size")
        seen, size = trace.one(evidence.RowSpans).rows, trace.one(evidence.RowsGiven).dataset_rows
        required(size is None or size >= declared, f"the data set has {size} rows, fewer than a micro-batch")
        taken = Counter[int]()
        for row in seen:
            taken[row.micro_batch] += row.documents
        packed = sum(row.stretches > 1 for row in seen) * 2 > len(seen)
        required(not packed, "rows hold several answers each, as packed rows do")
        batches = enough(len(taken), ENOUGH // 2, "micro-batches")
        (usual, times), *_ = Counter(taken.values()).most_common(1)
        # a loader that fills its batches by tokens has other numbers each time, and an epoch's last batch is short
        short = usual < declared and times >= ALIKE * batches
        detail = f"{times} of {batches} micro-batches have {usual} rows, {declared} declared"
        return self.found(not short, detail, measured=usual, limit=declared)


SAME_BATCH = "a test of the training code overfits one batch"
FEW = 4
"""Rows that may all be the same by chance of a data set."""
ONE_ROW = "The data set returns one row, whatever its index."
CUT_ALIKE = "every row is truncated, maybe before the rows differ"
REPLAYED = "A resume replays rows."


class RowsComeOnce(Check):
    """Within an epoch each row comes as often as the data set holds it."""

    needs = frozenset({"user_code", Premise.CAUSAL_LM, Premise.EVERY_ROW_SEEN, Premise.ROWS_DRAWN_ONCE})
    meaning = f"""Each step creates the loader or its iterator anew. A seed is reset. A sampler draws with replacement.
    {ONE_ROW} {REPLAYED} Some rows are then trained twice, others never."""
    remedy = "Create the iterator once per epoch. Do not reseed in the loop. Check the sampler for replacement=True."

    def judge(self, trace: Trace) -> Finding:
        windows, seen = trace.all(evidence.Window), trace.one(evidence.RowsGiven)
        digests = [digest for window in windows for digest in window.digests]
        required(len(digests) >= 2, "only one micro-batch: there is no other to compare it with")
        if seen.dataset_rows != 1 and len({row for window in windows for row in window.rows}) == 1 and seen.rows >= FEW:
            spans = [given.rows for given in trace.records(evidence.RowSpans) if given.end_tokens]
            cut = any(_cut_off(rows, trace.run.longest)[1] >= seen.rows for rows in spans)
            detail = f"all {seen.rows} rows are equal, from a data set of {seen.dataset_rows or 'unknown many'} rows"
            meant = CUT_ALIKE if cut else "" if seen.dataset_rows else SAME_BATCH
            return self.at_most(seen.rows - 1, 0, detail, meant=meant, causes=[ONE_ROW])
        if seen.uncertain and not seen.repeated:
            reason = f"{seen.uncertain} rows recurred, and the data set does not show how often it holds them"
            required(len(set(digests)) == 1, reason)
            return self.at_most(len(digests) - 1, 0, f"all {len(digests)} micro-batches are equal", meant=SAME_BATCH)
        detail = f"{seen.rows} rows of an epoch"
        detail += f", resumed after {seen.resumed_after}" if seen.resumed_after else ""
        if seen.repeated:
            detail += f", {len(seen.repeated)} of them more often than in the data set: {some(seen.repeated, 2)}"
        if seen.replayed:
            detail += f", {len(seen.replayed)} of them trained before the resume: {some(seen.replayed, 2)}"
        proven = seen.replayed or len(set(digests)) == 1  # no sampler draws one batch in every step
        meant = "" if proven else "a sampler with replacement, such as a weighted one, repeats rows"
        causes = (REPLAYED,) if seen.replayed and not seen.repeated else ()
        return self.at_most(len(seen.repeated) + len(seen.replayed), 0, detail, meant=meant, causes=causes)


BEGINNINGS_CUT = "The collator, or the tokenizer's truncation_side, keeps a row's last tokens and drops its prompt."
ENDS_CUT = "The length limit is shorter than many rows. The model then trains on answers without an end, or on none."
END_KEPT = "A tokenizer truncates most rows to one length, and keeps its last special token."
ONE_LENGTH = "a task may have rows of one length, and a text's beginning may be all that matters"


class RowsWhole(Check):
    """Rows reach the model whole, without truncation at either end.

    Not judged for plain text whose rows begin differently, or when the end token is unknown. For other objectives, rows
    are compared with each other: the longest end like the shorter ones. The same holds for an encoder-decoder's
    targets. Truncation by a fast tokenizer is counted where the script calls it.
    """

    needs = frozenset({"user_code"})
    convention = "the beginning of a row may be all that matters, as with titles"
    meaning = f"{ENDS_CUT} {BEGINNINGS_CUT} {END_KEPT}"
    remedy = "Raise the length limit (max_length, cutoff_len), or drop longer rows. Search the collator for slices."

    max_cut_share: float = 0.05
    """Share of the rows that lose their end. Many data sets hold a few rows that are too long."""
    max_beginning_share: float = 0.5
    """Share of the rows that lose their beginning. A row of exactly the longest length may be whole."""
    min_cut: int = 2
    """Truncated rows needed for a failure. Fewer may be chance."""
    min_alike: float = 0.9
    """Share of the shorter rows of another objective that end with one token."""
    max_full_share: float = 0.5
    """Share of the rows of another objective that are as long as the longest one. Texts differ in length."""
    min_pile: int = 4
    """Rows of that length over those of any other. Whole rows may have a few lengths, one of them the most common."""
    max_lost_share: float = 0.33
    """Share of the tokens of all texts that a tokenizer drops at one length limit."""

    def judge(self, trace: Trace) -> Finding:
        for cut in trace.records(evidence.TextsCut):
            lost = cut.lost_tokens / max(cut.lost_tokens + cut.kept_tokens, 1)
            if cut.texts >= ENOUGH and lost > self.max_lost_share:
                place = f"at {cut.max_length} tokens" if cut.max_length else "at the tokenizer's own limit"
                detail = f"{cut.cut} of {cut.texts} texts are truncated {place}, and {lost:.0%} of all tokens are lost"
                return self.at_most(lost, self.max_lost_share, detail, meant=ONE_LENGTH, causes=[ENDS_CUT])
        written = {t.digest: t.tokens for step in trace.records(evidence.StepInputs) for t in step.written if t.ended}
        if (found := self._pile(written.values(), "targets", "have an end token", END_KEPT)) is not None:
            return found
        if reason := trace.why({Premise.CAUSAL_LM, Premise.ROWS_FOLLOWED}):
            return self._by_last_tokens(trace, reason)
        required(not (reason := trace.why({Premise.END_KNOWN})), reason)
        seen, given, declared = trace.one(evidence.RowsGiven), trace.one(evidence.RowSpans), trace.run.longest
        rows = enough(len(given.rows), ENOUGH, "rows")
        longest, ends_cut = _cut_off(given.rows, declared)
        padded = any(window.inputs for window in trace.all(evidence.Window))  # which is no beginning that is cut off
        most = max(row.tokens for row in given.rows)
        ended = [r for r in given.rows if r.tokens == most and r.ended and not r.behind and r.stretches == 1]
        several = len({row.learned for row in ended}) > 2  # else whole rows may have one length, too
        if not padded and several and (share := len(ended) / rows) > self.max_beginning_share:
            detail = f"{share:.0%} of {rows} rows have {longest} tokens and a supervised end: their start is cut off"
            return self.at_most(share, self.max_beginning_share, detail, causes=[BEGINNINGS_CUT])
        if seen.first_token_supervised >= seen.rows and not given.begin_alike:
            raise NotApplicable("every row is supervised in full, as with plain text")
        short = [row for row in given.rows if row.tokens < longest]
        all_full = not short and (declared is not None or given.begin_alike)
        if not any(row.ended for row in short) and not all_full and not seen.end_tokens_supervised:
            raise NotApplicable("no row is supervised up to the tokenizer's end token")
        share = ends_cut / rows
        detail = f"{ends_cut} of {rows} rows ({share:.0%}) are truncated at {longest} tokens"
        fits = share <= self.max_cut_share or ends_cut < self.min_cut
        return self.found(fits, detail, measured=share, limit=self.max_cut_share, causes=[ENDS_CUT])

    def _pile(self, lengths: Collection[int], kind: str, ends: str, cause: str) -> Finding | None:
        """Return that many rows have the most tokens of all; None where that is nothing unusual."""
        (most, full), *others = sorted(Counter(lengths).items(), reverse=True) or [(0, 0)]
        next_most = max((times for _, times in others), default=0)
        stands_out = full > max(self.max_full_share * len(lengths), self.min_pile * next_most)
        if not most >= ENOUGH <= len(lengths) or not stands_out:
            return None
        detail = f"{full} of {len(lengths)} {kind} have {most} tokens, the most of all, and {ends}"
        return self.at_most(full / len(lengths), self.max_full_share, detail, meant=ONE_LENGTH, causes=[cause])

    def _by_last_tokens(self, trace: Trace, reason: str) -> Finding:
        """Judge rows of which only their tokens are known: truncation makes many as long as the longest one."""
        rows = list({row.digest: row for step in trace.records(evidence.StepInputs) for row in step.read}.values())
        required(len(rows) >= ENOUGH, reason)
        alike = max(Counter(row.last for row in rows).values()) >= self.min_alike * len(rows)
        ends, cause = ("all end alike", END_KEPT) if alike else ("not all end alike", ENDS_CUT)
        pile = self._pile([row.tokens for row in rows], "rows", ends, cause)
        if pile is not None and (alike or "pairs" in trace.run.features):  # a pair is no block of running text
            return pile
        (longest, _), *others = Counter(row.tokens for row in rows).most_common(2)
        shorter = [row.last for row in rows if row.tokens < longest]
        piled_up = others and longest == max(row.tokens for row in rows)
        last, times = Counter(shorter).most_common(1)[0] if piled_up else (None, 0)
        required(2 * times >= ENOUGH and times >= self.min_alike * len(shorter), reason)
        cut = sum(row.tokens == longest and row.last != last for row in rows)
        detail = f"{cut} of {len(rows)} rows have {longest} tokens, and do not end as shorter ones do"
        fits = cut <= self.max_cut_share * len(rows) or cut < self.min_cut
        return self.found(fits, detail, measured=cut / len(rows), limit=self.max_cut_share, causes=[ENDS_CUT])


def _cut_off(rows: Sequence[evidence.RowSpan], declared: int | None) -> tuple[int, int]:
    """Return the declared length, else that of the longest row, and how many rows of that length lose their end.

    In those no end token is supervised, and the last token is, or nothing.
    """
    longest = declared or max((row.tokens for row in rows), default=0)
    full = (row for row in rows if row.tokens >= longest)
    return longest, sum(not row.ended and (not row.behind or not row.learned) for row in full)
