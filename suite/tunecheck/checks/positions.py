"""At which positions a loss pulls: whatever it is, not at padding, and not towards the token that is read there."""

from collections.abc import Sequence

from tunecheck.core.check import Check, enough, required, worst_of
from tunecheck.core.evidence import CallOrder, CutOff, PositionGradients, RowsUsed, StepInputs, TokensLearned
from tunecheck.core.finding import Finding
from tunecheck.core.premises import Premise
from tunecheck.core.row_spans import BEGUN_LATE, MAY_BEGIN_LATE, MAY_LEARN_PROMPTS, PROMPTS_WHOLE
from tunecheck.core.trace import Trace

SHIFTED_TWICE = "The data set or the collator shifts labels, and the loss shifts them again."
COPIED = "The targets are read from the input column, so the model learns to repeat its input."
MASK_IN_USE = "The id that marks masked positions belongs to a real token."
UNMASKED = "Labels of unmasked tokens are not set to the ignored index."
MARKED = "a word may be replaced by a token that texts have, such as the unknown one"
REPEATS = "an autoencoder is to repeat its input, and a correction may change little"
SEEN = "A non-causal mask, or another operation across positions, reveals the target."
SHIFTED_BACK = "Inputs and targets are swapped: the model reads ids[:, 1:] and predicts ids[:, :-1]."
BACKWARDS = "a model may read its rows from their ends"
FURTHER_AHEAD = "a head may predict a token further ahead, as in multi-token prediction"
PADDING_ENDS = "the first token of padding may stand for a row's end"
ONE_OFF = {
    "used_late": "the loss leaves out the first label",
    "used_behind": "the loss uses the scores behind the last label",
}
"""Field of PositionGradients to what it shows."""
OTHER_WEIGHTS = "a loss may weigh the tokens of an answer on purpose"
LEARNED_ALIKE = "Padding, placeholders or padded labels of CTC are learned. Or the vocabulary lacks most words."
MIXED = "A view in place of a transpose, or a softmax or norm over the batch, mixes the rows of a batch."
COMPARED = "a model may compare the rows of its batch on purpose"
OVER_ALL = "A mean runs over all positions, such as mean() of masked losses."
CONSTANT = "a loss may be divided by its batch's shape on purpose, as by a constant"
RESTS = "a signal may rest, as silence does, and classes may be unequal"
MASK_OFF = "The answer mask is one position off from the scores that it multiplies."


def _sums(steps: Sequence[PositionGradients], *fields: str) -> list[int]:
    return [sum(getattr(seen, field) for seen in steps) for field in fields]


class NoLossOnPadding(Check):
    """Padded positions contribute no gradient, and no row's last token has to predict padding.

    A loss that picks one position out of all is exempt. Others are divided by the number of positions that learn. With
    more than 256 tokens in the vocabulary, targets are not long runs of one token, nor mostly one token, nor mostly
    unknown.
    """

    needs = frozenset({"user_code"})
    meaning = f"""Padding has labels. A term of the loss, such as smoothing or a divergence, is not masked. {OVER_ALL}
    The last position of a right-padded row is used as its last token. {MASK_OFF} {LEARNED_ALIKE}"""
    remedy = "Multiply each term and mean by attention_mask. Read a row's last token at attention_mask.sum(1) - 1."

    max_share: float = 1e-3
    """Share of the gradient's norm. It is exactly 0 without loss on padding, 0.02 with one label on it in four rows."""
    max_asked_share: float = 0.5
    """Share of the right-padded rows whose last token has to predict padding. It is 0 or 1."""
    min_rows: int = 4
    """Right-padded rows needed for a share."""
    max_runs_share: float = 0.25
    """Runs of at least 16 equal targets over rows. A text, such as a table, has one now and then."""
    max_alike_share: float = 0.9
    """Share of the targets that are one token. A stop word is one in twenty."""
    max_unknown_share: float = 0.5
    """Share of the targets that are the tokenizer's unknown token."""
    min_alike: int = 8
    """Runs, or CTC rows, needed for a suspicion; its square is the number of targets needed."""

    def judge(self, trace: Trace) -> Finding:
        steps = trace.records(PositionGradients)
        answers, raising, own = _sums(steps, "answers", "raising", "raising_own")
        for field, words in ONE_OFF.items() if 2 * own <= raising else ():  # a loss without the shift is another fault
            (off,) = _sums(steps, field)
            if off > self.max_asked_share * answers and answers >= self.min_rows:
                detail = f"{words} in {off} of {answers} answers"
                return self.at_most(off / answers, self.max_asked_share, detail, meant=OTHER_WEIGHTS, causes=[MASK_OFF])
        padded = [seen for seen in steps if seen.padded]
        if all(seen.padding_share <= self.max_share for seen in padded):
            if over_all := max((seen.over_all for seen in trace.records(TokensLearned)), default=0):
                detail = f"{over_all} losses are divided by all their positions, not by those that learn"
                return self.at_most(over_all, 0, detail, meant=CONSTANT, causes=[OVER_ALL])
            for seen in trace.records(TokensLearned):
                few = seen.targets < self.min_alike**2
                for number, of, limit, words in (
                    (seen.spelt, seen.spelt, 0, "rows of CTC: labels of one length, filled up with one token"),
                    (0 if few else seen.unknown, seen.targets, self.max_unknown_share, "targets: unknown tokens"),
                    (0 if few else seen.most, seen.targets, self.max_alike_share, "targets: one and the same token"),
                    (seen.runs, seen.rows, self.max_runs_share, "rows: runs of at least 16 equal targets"),
                ):
                    if number >= self.min_alike and number > limit * of:
                        detail = f"{number} in {of} {words}"
                        return self.at_most(number / of, limit, detail, meant=RESTS, causes=[LEARNED_ALIKE])
        required(padded, "no padded row reached the model with a mask")
        worst = worst_of(padded, key=lambda seen: seen.padding_share)
        detail = f"step {worst.step}: {worst.padding_share:.2g} of the gradient is at {worst.padded} padded positions"
        meant = "a script may have its rows' filling learned" if worst.padding_guessed else ""
        rows, asked = _sums(padded, "followed", "asked_behind")
        if worst.padding_share <= self.max_share and asked > self.max_asked_share * rows and rows >= self.min_rows:
            detail = f"the last tokens of {asked} of {rows} rows have to predict the padding after them"
            return self.at_most(asked / rows, self.max_asked_share, detail, meant=PADDING_ENDS)
        return self.at_most(worst.padding_share, self.max_share, detail, meant=meant)


OTHER_MASK = "Another tensor is passed as the mask, or the mask belongs to other tokens."
PADDED_RIGHT = "A decoder's prompts are padded on the right, so generation continues padding."
MAY_GO_ON = "a model may be trained to answer at a fixed position"
MAY_HIDE = "a script may hide tokens on purpose, so that the model does without them"


class PaddingHidden(Check):
    """Bidirectional attention reads no padded position, and all others.

    In causal models with right padding no token reads later ones, so there the check only asks whether generation
    continues text, not padding.
    """

    needs = frozenset({"user_code"})
    convention = "a model may learn to ignore its padding where every row is filled up to one length"
    meaning = f"""The model is called without attention_mask, or with all ones. A row's results then depend on its
    padding. {OTHER_MASK} {PADDED_RIGHT}"""
    remedy = """Pass the tokenizer's attention_mask to the model, through the data set, the collator and each wrapper.
    To generate, set padding_side="left"."""

    max_hidden_share: float = 0.1
    """Share of the text positions that the mask hides."""

    def judge(self, trace: Trace) -> Finding:
        inputs = trace.records(StepInputs)
        if behind := sum(step.behind_padding for step in inputs):
            continued = sum(step.continued for step in inputs)
            detail = f"{behind} of {continued} rows that generate() goes on with end in padding"
            return self.at_most(behind, 0, detail, meant=MAY_GO_ON, causes=[PADDED_RIGHT])
        text, hidden = _sums(trace.records(PositionGradients), "text_both_ways", "text_hidden")
        if hidden > (limit := self.max_hidden_share) * text:
            detail = f"the attention mask hides {hidden} of {text} positions that hold text"
            return self.at_most(hidden / text, limit, detail, meant=MAY_HIDE, causes=[OTHER_MASK])
        seen = [one for one in trace.records(PositionGradients) if one.padding_both_ways]
        seen = required(seen, "no row was seen to be padded in a model with attention in both directions")
        shown, padded = _sums(seen, "padding_shown", "padding_both_ways")
        detail = f"attention reads {shown} of {padded} padded positions in {len(seen)} steps"
        return self.found(not shown, detail, measured=shown, limit=0)


DETACHED = "A pass's results are detached, converted to numbers, or overwritten by the next pass."
ONE_SIDED = "Passages, or the second texts of pairs, are encoded under no_grad or detached."
FIXED_SIDE = "one side of the pairs may be meant to teach the other alone"
FOR_A_METRIC = "a pass may be made for a metric alone, though it then needs no gradients"
INVERTED = "The mask of answers is inverted."
TAGS_OFF = "Word tags are misaligned: the first special token, or the further tokens of a word, are not counted."
TAGGED = {
    "tags_early": ("marked", "from its first mark on, and neither its last mark nor the token before"),
    "tags_late": ("marked", "from the second token behind its first mark on"),
    "tags_counted": ("split", "up to as many tokens as it has words, though some words are several tokens"),
}
"""Field of PositionGradients to that of the rows looked at, and to which positions the loss uses."""


class RowsReachLoss(Check):
    """The loss uses every forward pass, and in a causal model positions that see most of their row.

    A causal model's positions do not see later tokens, so tokens after the last position in the loss change no
    gradient. A pass with gradients enabled receives one. Both sides of pairs that one model encodes learn. After a
    prompt, the loss uses the answer from its first token. An encoder's tags begin at the first word. The rows of a
    batch do not depend on each other.
    """

    needs = frozenset({"user_code"})
    convention = "a later part of each row may be context for nothing, such as turns that are not learned"
    meaning = f"""A causal model's first position is used as the summary of its row, as in BERT. Or the index of the
    last token counts from the wrong end. {INVERTED} {BEGUN_LATE} {PROMPTS_WHOLE} {DETACHED} {ONE_SIDED}
    {TAGS_OFF} {MIXED}"""
    remedy = "Use the last token of each row, at attention_mask.sum(1) - 1 if rows are padded on the right, or a mean."

    max_unseen_share: float = 0.5
    """Share of the tokens after the last used position. It is near 0 if labels or the head use the end of a row."""
    min_tokens: int = 16
    """Tokens needed for a share."""
    min_steps: int = 3
    """Steps that must each leave a pass without a gradient."""
    min_rows: int = 8
    """Rows, all learned only at their beginning, or tagged rows needed for a share."""
    max_prompts_share: float = 0.25
    """Share of the learned tokens before the end of a template, in rows that are learned in full."""
    max_mixed_share: float = 0.25
    """Share of the rows. Experts with a capacity may drop a token because of another row."""
    max_off_share: float = 0.9
    """Share of the tagged rows. A mark may be tagged as well, and some rows end with an untagged part of a word."""

    def judge(self, trace: Trace) -> Finding:
        lost = [seen for seen in trace.records(CutOff) if seen.passes and seen.in_steps >= self.min_steps]
        # what a generator makes is detached where a critic learns from it
        if lost and not any("step of another optimizer" in seen.calls for seen in trace.records(CallOrder)):
            detail = f"forward passes with gradients whose results get none, in each step: {lost[0].passes}"
            return self.at_most(lost[0].passes, 0, detail, meant=FOR_A_METRIC, causes=[DETACHED])
        if one_sided := sum(seen.one_sided for seen in trace.records(CutOff)):
            detail = f"passes that do not learn, against whose rows the loss scores other passes: {one_sided}"
            return self.at_most(one_sided, 0, detail, meant=FIXED_SIDE, causes=[ONE_SIDED])
        # else labels_as_configured judges them
        for used in trace.records(RowsUsed) if trace.why({Premise.CAUSAL_LM, Premise.LABELS_KNOWN}) else ():
            if used.begun_late:
                detail = f"the first {used.begun_late} tokens of every answer, behind the template, are not learned"
                return self.at_most(used.begun_late, 0, detail, meant=MAY_BEGIN_LATE, causes=[BEGUN_LATE])
            if used.prompts_share > self.max_prompts_share:
                detail = f"{used.prompts_share:.0%} of the learned tokens are prompt, before the template's end"
                share, causes = used.prompts_share, [PROMPTS_WHOLE]
                return self.at_most(share, self.max_prompts_share, detail, meant=MAY_LEARN_PROMPTS, causes=causes)
            if used.beginnings == used.rows >= self.min_rows:
                detail = f"all {used.rows} rows are learned from their first token on, and none to its end"
                return self.at_most(used.rows, 0, detail, causes=[INVERTED])
        steps = trace.records(PositionGradients)
        alone, mixed = _sums(steps, "rows_alone", "rows_mixed")
        if mixed > self.max_mixed_share * alone:
            detail = f"{mixed} of {alone} rows have other results if other rows of their batch have other tokens"
            return self.at_most(mixed / alone, self.max_mixed_share, detail, meant=COMPARED, causes=[MIXED])
        for off, (field, words) in TAGGED.items():
            rows, looked = _sums(steps, off, field)
            if looked >= self.min_rows and rows > self.max_off_share * looked:
                detail = f"in {rows} of {looked} rows of an encoder the loss uses the row {words}"
                return self.at_most(rows / looked, self.max_off_share, detail, causes=[TAGS_OFF])
        known, unseen = _sums(steps, "tokens", "unseen")
        tokens = enough(known, self.min_tokens, "tokens of a causal model")
        share = unseen / tokens
        detail = f"{share:.1%} of {tokens} tokens come after the last position of their row that the loss uses"
        return self.at_most(share, self.max_unseen_share, detail)


class NoTargetLeakage(Check):
    """Each position predicts a token that it cannot read.

    The target is neither the position's own input nor a next token that attention already shows. An encoder does not
    read the targets that its decoder is to write.
    """

    needs = frozenset({"user_code"})
    meaning = f"""The loss does not shift labels. A decoder gets its labels as input. Labels were copied after tokens
    were masked. {SHIFTED_TWICE} {SHIFTED_BACK} {SEEN} {COPIED} {MASK_IN_USE} {UNMASKED}
    The model then learns to copy, and its loss falls very fast."""
    remedy = """Shift labels against logits once. Clone the labels before masking tokens. Pass is_causal=True. Search
    the model for other operations across positions: a mean, a convolution, a normalisation."""

    max_share: float = 0.9
    """Share of the positions whose next token differs. It is 1 if labels are not shifted, else less than 0.05."""
    max_second_share: float = 0.5
    """Share of the same positions. It is near 1 if labels are shifted twice, else 0."""
    min_positions: int = 16
    """Positions needed for a share."""
    max_unmasked_share: float = 0.5
    """Share of the positions that a masked model learns. BERT shows one in ten its own token."""
    max_copied_share: float = 0.75
    """Share of the targets that copy their input's beginning, or at least half of it. An extract is shorter."""
    min_copied: int = 8
    """Copied targets needed for a share."""
    max_seeing_share: float = 0.5
    """Share of the rows whose next token was exchanged. It is 0 for a causal model and 1 without a mask. Experts with a
    capacity may drop another token."""

    def judge(self, trace: Trace) -> Finding:
        written = {t.digest: t.copied for own in trace.records(StepInputs) for t in own.written if t.copied is not None}
        if (copied := sum(written.values())) > max(self.max_copied_share * len(written), self.min_copied - 1):
            detail = f"{copied} of {len(written)} targets stand in the rows that the encoder reads"
            return self.at_most(copied / len(written), self.max_copied_share, detail, meant=REPEATS, causes=[COPIED])
        steps = trace.records(PositionGradients)
        masked, unmasked, asked_for_mask = _sums(steps, "masked", "unmasked", "masks_asked")
        if masked >= self.min_positions:
            if 1 < asked_for_mask <= masked / 4:  # a blank may be asked for at most places
                detail = f"the token that {masked} masked positions read is itself the target of {asked_for_mask}"
                return self.at_most(asked_for_mask, 1, detail, meant=MARKED, causes=[MASK_IN_USE])
            if unmasked > (limit := self.max_unmasked_share) * (masked + unmasked):
                detail = f"{unmasked} of {masked + unmasked} positions of a masked model read their own target"
                return self.at_most(unmasked / (masked + unmasked), limit, detail, meant=REPEATS, causes=[UNMASKED])
        looked_at, own, after_next, before = _sums(steps, "raising", "raising_own", "raising_second", "raising_before")
        asked, seeing = _sums(steps, "asked_for_next", "seeing_next")
        positions = enough(looked_at, self.min_positions, "positions with both tokens and vocabulary logits")
        share = own / positions
        if asked and seeing / asked > self.max_seeing_share:
            detail = f"in {seeing} of {asked} rows the logits depend on the next token, which is their target"
            return self.at_most(seeing / asked, self.max_seeing_share, detail, causes=[SEEN])
        if (second := after_next / positions) > self.max_second_share:
            detail = f"{second:.1%} of {positions} positions have the token after the next one as their target"
            return self.at_most(second, self.max_second_share, detail, meant=FURTHER_AHEAD, causes=[SHIFTED_TWICE])
        if (back := before / positions) > self.max_second_share:
            detail = f"{back:.1%} of {positions} positions have the previous token as their target"
            return self.at_most(back, self.max_second_share, detail, meant=BACKWARDS, causes=[SHIFTED_BACK])
        detail = f"{share:.1%} of {positions} positions have their own input token as their target"
        detail += f"; none of {asked} rows attends to the next token" if asked and not seeing else ""
        return self.at_most(share, self.max_share, detail)
