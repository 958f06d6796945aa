"""The rows that the model received: split, template, supervised tokens, order."""

from itertools import takewhile

from tunecheck.core.check import Check, required, some
from tunecheck.core.evidence import Dataset, DataSplit, TokensReplaced, Window
from tunecheck.core.finding import Finding
from tunecheck.core.premises import ROWS_KNOWN, Premise
from tunecheck.core.row_spans import ROWS_OF_AN_ORDER, row_problems
from tunecheck.core.trace import Trace


class HeldoutIsDisjoint(Check):
    """Held-out rows and training rows are disjoint, and each evaluation reads its own split.

    Every token id also has a row in the embedding matrix.
    """

    needs = frozenset({"suite_rows"})
    meaning = """The split was made after rows were repeated or mixed. The held-out loss then measures memorisation
    alone."""
    remedy = "Split before any other processing, by instruction rather than by row number."

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(DataSplit)
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
    remedy = """Compare the example row in this finding with its source text. Leave the label shift to the loss. Mask
    padding by the attention mask, not by the token id."""

    def judge(self, trace: Trace) -> Finding:
        windows = trace.all(Window)
        rows = sum(len(window.rows) for window in windows)
        problems = [*row_problems(windows)]
        for seen in trace.records(TokensReplaced):
            problems.append(f"step {seen.step}: the model reads tokens that no batch holds: {seen.read!r}")
        return self.unless(problems, f"{rows} rows audited", compared=rows)


MASKED = "Label masking removes answers or keeps prompts."
OTHERS_COUNTED = "The trainer counts other tokens, which scales the loss and the gradient, or inflates throughput."
FIRST_COUNTED = (
    "The library counts the first label of each row, which no position predicts. Loss and gradient are a little too "
    "small. Your script does not cause this: transformers 4.57 and 5.9 do so for every model, 5.23 for GPT2LMHeadModel "
    "(huggingface/transformers#46204)."
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
        for window in trace.all(Window):
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
        total = sum(window.supervised_tokens for window in trace.all(Window))
        if not total:
            problems["0 supervised tokens in all: there is nothing to learn"] = MASKED
        meant = BY_LIBRARY if {*problems.values()} == {FIRST_COUNTED} else ""
        return self.unless(problems, f"{total} supervised tokens", most=3, meant=meant)


class BatchesDiffer(Check):
    """Every micro-batch of the first epoch is different, unless the data set repeats rows."""

    needs = frozenset({"suite_rows"})
    meaning = """The data loader restarts at each step, or a seed is reset. The model then memorises one batch, and its
    loss falls fast."""
    remedy = "Create the loader's iterator once, outside the training loop. Do not reseed inside the loop."

    def judge(self, trace: Trace) -> Finding:
        windows, seen = trace.all(Window), trace.one(DataSplit)
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
        if by_data:
            detail += f"; {by_data} more repeat because the data set repeats their rows"
        return self.at_most(repeated, 0, detail, compared=len(digests))


class RowOrder(Check):
    """Each optimizer step trains on the rows that the seed and the step number prescribe.

    The rows come from the files that the trace names. Every row comes once per epoch, and each epoch has another order.
    """

    needs = frozenset({"suite_rows"})
    meaning = """The order depends on more than the seed. Rows are skipped or repeated. A resume replays data. Another
    file was read."""
    remedy = "Derive the row order from the seed and the epoch alone."

    def judge(self, trace: Trace) -> Finding:
        windows, split, named = trace.all(Window), trace.one(DataSplit), trace.one(Dataset).sha256
        problem = _epochs(windows, split.train_rows)
        if (read := split.dataset_sha256) != named:
            problem = f"the files read have the digest {read[:12]}, those of the trace {named[:12]}"
        detail = problem or f"{len(windows)} steps with the prescribed rows"
        if wrong := [window for window in windows if window.rows != window.expected_rows]:
            detail = f"step {wrong[0].step}: rows {some(wrong[0].rows)}, prescribed {some(wrong[0].expected_rows)}"
        rows = sum(len(window.rows) for window in windows)
        return self.at_most(len(wrong), 0, detail, problems=[problem] if problem else (), compared=rows)


def _epochs(windows: list[Window], train_rows: int) -> str:
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
