"""What is learned of the rows that a training is given: labels, where answers end, and which answers are better."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from tunecheck.core import evidence
from tunecheck.core.check import Check, enough, required
from tunecheck.core.finding import Finding
from tunecheck.core.premises import ROWS_KNOWN, Premise
from tunecheck.core.row_spans import (
    ALIKE,
    BEGUN_LATE,
    ENOUGH,
    LABELS_SHIFTED,
    MAY_BEGIN_LATE,
    MAY_LEARN_PROMPTS,
    PADDING_LEARNED,
    PROMPTS_WHOLE,
    row_problems,
)
from tunecheck.core.trace import Trace

PUNCTUATION = ".!?:;,\"')]}"
"""What text ends in by itself, with no mark behind it."""
FEWEST_CUT = 3
"""Rows whose labels end at the same place by accident hardly ever."""
LABEL_CAUSES = {
    LABELS_SHIFTED: "The collator shifts labels, and the loss shifts them again.",
    PADDING_LEARNED: "Padding keeps its labels: nothing sets them to -100.",
}
"""Problem of a row to its cause, where it has only one."""
ENDS_MASKED = "The padding token is also the end token, so masking padding masks both. The model never learns to stop."
ENDS_OTHERWISE = "rows may end with their own mark, and these tokens may be padding that is attended to"
LABELS_CUT = "Labels are truncated but tokens are not."
PROMPTS_LEARNED = "Prompts are supervised, although the script declares answers only."
OTHER_TOKENIZER = "The tokenizer belongs to another model."
ANSWER_MASKED = "The masked prompt already contains the answer."
DOUBTFUL = {
    "padding_ends": (
        "rows have a masked padding token, which is attended to, after the supervised text",
        "a script may attend to one token of padding, and end its answers otherwise",
        "The padding token is also the mark that ends an answer, and each one is masked.",
    ),
    "begins_again": (
        "rows begin with the start token, and have it again where the answer begins",
        "a start token may mark an answer",
        "Prompt and answer are tokenized separately, each with special tokens: pass add_special_tokens=False.",
    ),
    "begins_twice": (
        "rows begin with the same text twice",
        "a task may be to copy what is given",
        "The prompt is prepended to a text that already contains it.",
    ),
    "answers_shown": (
        "rows contain their answer in the prompt, too, at a constant distance before it",
        "a task may be to repeat what is given",
        "The prompt is built from the answer's field.",
    ),
    "begun_astray": (
        "answers begin before or after the end of a template, at varying distances",
        "a text may be learned from the middle on",
        "The mask uses a wrong prompt length, such as the answer's, or one in characters.",
    ),
    "users_learned": (
        "rows have the user's turns supervised, and the text before them or assistant turns masked",
        "a model may be trained to write as a user does",
        "The mask covers the wrong roles, or is inverted.",
    ),
    "headers_learned": (
        "rows have the mark that begins the model's turn supervised, but not the prompt before it",
        "a model may choose who speaks next",
        "The prompt is rendered without add_generation_prompt=True.",
    ),
}
"""Field of RowsGiven to what it shows, who does so on purpose, and the usual cause."""


class LabelsAsConfigured(Check):
    """Labels are the input tokens at the same positions; the model shifts them.

    Padding and prompts declared as masked are not supervised. The end token is. Token ids are those of the base model's
    tokenizer. The start token stands only at the start of a row. No row repeats its prompt, and no prompt contains its
    answer. User turns are supervised only if all turns are.
    """

    needs = ROWS_KNOWN | {"user_code"}
    meaning = f"""{LABEL_CAUSES[LABELS_SHIFTED]} {LABEL_CAUSES[PADDING_LEARNED]} {ENDS_MASKED} {LABELS_CUT} The response
    template does not match some rows. {PROMPTS_LEARNED} {ANSWER_MASKED} {OTHER_TOKENIZER}
    {" ".join(cause for *_, cause in DOUBTFUL.values())} {BEGUN_LATE}
    {PROMPTS_WHOLE}"""
    remedy = """Compare labels with tokens: run tunecheck rows. Mask padding by the attention mask, not by the token id.
    Give the tokenizer a padding token of its own. Check the collator and the template's {% generation %} marks."""

    max_unsupervised_share: float = 0.25
    """Share of the rows shorter than the longest one. Some data sets hold rows without an answer."""
    max_other_share: float = 0.5
    """Share of the tokens that have another id in the base model's tokenizer."""
    max_doubtful_share: float = 0.75
    """Share of the rows with the same oddity. A few rows may quote a special token."""

    max_prompts_share: float = 0.25
    """Share of the supervised tokens before the end of a template, in rows that are supervised in full."""

    def judge(self, trace: Trace) -> Finding:
        windows, seen = trace.all(evidence.Window), trace.one(evidence.RowsGiven)
        kinds = row_problems(windows)
        told = {words: LABEL_CAUSES.get(kind, "") for words, kind in kinds.items()}
        rows, share = trace.one(evidence.RowSpans).rows, self.max_unsupervised_share
        shifted = LABELS_SHIFTED in kinds.values()  # so are the labels of end tokens
        masked_ends = 0 if seen.end_tokens_supervised or shifted else seen.end_tokens_masked
        unseen = f"none of the {masked_ends} end tokens after supervised text is supervised"
        # of a row that is not padded the last token is its own
        padding = seen.ends_or_padding > 0 and any(row.learned and not row.behind for row in rows)
        doubtful = 0 < masked_ends == seen.ends_or_padding and not padding
        if masked_ends and not padding and not doubtful:
            told[unseen] = ENDS_MASKED
        longest = max((row.tokens for row in rows), default=0)
        short = [row for row in _distinct(rows) if row.tokens < longest]
        if seen.unsupervised == seen.rows:
            told["no row has a supervised token"] = ""
        elif (empty := sum(not row.learned for row in short)) >= FEWEST_CUT and empty > share * len(short):
            told[f"in {empty} of {len(short)} untruncated rows no token is supervised"] = ""
        elif (ends := sum(row.ended and row.learned == 1 for row in short)) >= FEWEST_CUT and ends > share * len(short):
            told[f"in {ends} of {len(short)} untruncated rows the end token alone is supervised"] = ANSWER_MASKED
        if lost := _labels_lost(rows):
            told[lost] = LABELS_CUT
        if seen.beginnings >= seen.rows > 1:
            told["every row is supervised at its start and none at its end: the prompt, not the answer"] = ""
        if (masked := trace.run.masked) and seen.first_token_supervised == seen.rows:
            told[f"{masked}_only_loss is declared, but every row is supervised from its first token"] = PROMPTS_LEARNED
        for known in trace.records(evidence.BaseTokens):
            if known.tokens >= ENOUGH and known.other > self.max_other_share * known.tokens:
                words = f"{known.other} of {known.tokens} tokens have another id in the base model's tokenizer"
                told[f"{words} ({known.example})"] = OTHER_TOKENIZER
        if seen.begun_late and not told:
            detail = f"the first {seen.begun_late} tokens of every answer, behind the template, are not supervised"
            return self.at_most(seen.begun_late, 0, detail, meant=MAY_BEGIN_LATE, causes=[BEGUN_LATE])
        for field, (detail, meant, cause) in DOUBTFUL.items() if not told else ():
            if (found := getattr(seen, field)) >= ENOUGH and found > (limit := self.max_doubtful_share) * len(rows):
                detail = f"{found} of {len(rows)} {detail}"
                return self.at_most(found / len(rows), limit, detail, meant=meant, causes=[cause])
        if seen.prompts_share > self.max_prompts_share and not told:
            detail = f"{seen.prompts_share:.0%} of the supervised tokens are prompt, before the template's end"
            share, causes = seen.prompts_share, [PROMPTS_WHOLE]
            return self.at_most(share, self.max_prompts_share, detail, meant=MAY_LEARN_PROMPTS, causes=causes)
        fine = f"{seen.rows} rows, {seen.end_tokens_supervised} of their ends supervised"
        if doubtful and not told:
            return self.unless({unseen: ENDS_MASKED}, fine, compared=seen.rows, meant=ENDS_OTHERWISE)
        return self.unless(told, fine, compared=seen.rows, meant=trace.why({Premise.LOSS_DECLARED}))


def _labels_lost(rows: Iterable[evidence.RowSpan]) -> str:
    """Return that the labels of rows end at one place of the batch, while their tokens go on; "" where they do not.

    What follows an answer rightly, as a user's turn, begins at another place in each row.
    """
    answers = [row for row in _distinct(rows) if row.learned]
    column = max((row.column for row in answers), default=0)
    cut = [row for row in answers if row.behind and row.column == column]
    others = {row.behind for row in answers if row.column < column}
    if len(cut) < FEWEST_CUT or len({row.behind for row in cut}) < 2 or len(others) != 1:
        return ""
    return f"the labels of {len(cut)} of {len(answers)} rows end at column {column}, before their tokens do"


NO_END = "Template, formatting function or collator adds no end token. Generation then runs to its length limit."
NO_HEADER = "The rows lack the assistant mark that apply_chat_template writes, and that generation starts from."
CUT_ALIKE = "A length limit truncates the answers, and removes their end tokens."
FIXED_WIDTH = "answers of one length, such as numbers of a fixed width, need no end"
OTHER_FORM = "a model may be taught another form of chat than its template's"
TURN_OPENED = "add_generation_prompt=True adds an empty turn after each answer, or a turn's mark is written twice."
SCORED = "the loss is the script's own, for example one that scores answers and never generates"


class AnswersEnd(Check):
    """Supervised answers end with an end token, so that the model learns to stop.

    The check reads untruncated rows with masked prompts. It exempts answers that share one closing token, one-token
    answers, and a few recurring ones such as class names. Longer answers of equal length, and those of a script's own
    loss, are only suspected. No empty assistant turn may follow an answer. Rows with the chat template's user mark must
    have its assistant mark, too.
    """

    needs = ROWS_KNOWN | {"user_code", Premise.END_KNOWN}
    meaning = f"{NO_END} {CUT_ALIKE} {TURN_OPENED} {NO_HEADER}"
    remedy = "Append the tokenizer's eos_token, or the template's end-of-turn token, to every answer."

    max_open_share: float = 0.25
    """Share of the answers. Some data sets hold answers that were truncated earlier."""
    max_unfilled_share: float = 0.05
    """Share of the assistant turns. A generation prompt after each conversation adds one per conversation."""
    min_unfilled: int = 4
    """Empty turns needed for a failure. Truncation may explain fewer."""
    max_unopened_share: float = 0.5
    """Share of the rows with a user's turn but none of the assistant's. Truncation may leave only the prompt."""

    def judge(self, trace: Trace) -> Finding:
        seen, given = trace.one(evidence.RowSpans).rows, trace.one(evidence.RowsGiven)
        unfilled, turns, unopened = given.turns_unfilled, given.turns, given.turns_unopened
        if unfilled >= self.min_unfilled and unfilled / turns > self.max_unfilled_share:
            detail = f"{unfilled} of {turns} assistant turns are empty, next to another one"
            return self.at_most(unfilled / turns, self.max_unfilled_share, detail, causes=[TURN_OPENED])
        if unopened >= ENOUGH and unopened > (limit := self.max_unopened_share) * len(seen):
            detail = f"{unopened} of {len(seen)} rows have the template's user turn and no assistant turn"
            return self.at_most(unopened / len(seen), limit, detail, meant=OTHER_FORM, causes=[NO_HEADER])
        rows = _distinct(seen)
        longest = max((row.tokens for row in rows), default=0)
        answers = [row for row in rows if row.learned and row.first > 1]
        required(answers, "every row is supervised in full, as with plain text")
        loose = [r for r in answers if not (r.ended or r.behind or r.tokens == longest)]
        whole = enough(sum(row.ended for row in answers) + len(loose), ENOUGH, "untruncated answers")
        share = len(loose) / whole
        reason = _needs_no_end(loose) if share > self.max_open_share else ""
        required(not reason, reason)
        detail = f"{len(loose)} of {whole} untruncated answers have no end token"
        if share > self.max_open_share and (tokens := _common_length(loose)):
            detail += f", and the same length of {tokens} tokens"
            return self.at_most(share, self.max_open_share, detail, meant=FIXED_WIDTH, causes=[CUT_ALIKE])
        own = trace.why({Premise.LOSS_DECLARED, Premise.TOKEN_MEAN_LOSS}) and SCORED
        meant = own if any(row.last.strip() for row in loose) else "a new line may be what ends an answer"
        return self.at_most(share, self.max_open_share, detail, meant=meant, causes=[NO_END])


FILLED = "Label padding is not replaced by -100, so the model trains on it."
BEGUN_TWICE = "Labels keep the start token, because the collator only strips bos_token_id. The decoder then reads two."


class WrittenAnswersEnd(Check):
    """An encoder-decoder's targets end with one end token, so that the model learns to stop.

    If some targets have one, the longest others may be truncated. Equal targets count once. The same holds for answers
    that the script's own causal model learns after prompts. No end token stands inside an answer, and no padding is
    learned after it. Targets do not begin with the start token: the model prepends it.
    """

    needs = frozenset({"unknown_rows"})
    convention = "a target may need no end token, for example if all have one length or their own end mark"
    meaning = f"{NO_END} Or the end token is the padding token, and is masked with it. {FILLED} {BEGUN_TWICE}"
    remedy = "Let the tokenizer add special tokens to targets, or append eos_token. Replace label padding by -100."

    max_open_share: float = 0.25
    """Share of the targets. Some data sets hold targets that were truncated earlier."""
    max_loose_share: float = 0.5
    """Share of the answers after prompts: near 0 with an end token, near 1 without. Also of targets with learned
    padding or two starts."""

    def judge(self, trace: Trace) -> Finding:
        for used in trace.records(evidence.RowsUsed):
            if used.answers >= ENOUGH:
                loose = 0 if used.alike >= ALIKE * used.answers else used.loose
                detail = f"{loose} of {used.answers} answers end with a token that others have within"
                return self.at_most(loose / used.answers, self.max_loose_share, detail)
        written = {target.digest: target for step in trace.all(evidence.StepInputs) for target in step.written}
        required(written, "no encoder-decoder with a known end token learns to write")
        for found, what, cause in (
            ([t for t in written.values() if t.filled > 1], "are followed by padding that is learned", FILLED),
            ([t for t in written.values() if t.begun], "begin with the model's own start token", BEGUN_TWICE),
        ):
            if len(found) >= ENOUGH and (share := len(found) / len(written)) > self.max_loose_share:
                detail = f"{len(found)} of {len(written)} targets {what}"
                return self.at_most(share, self.max_loose_share, detail, causes=[cause])
        any_ended = any(target.ended for target in written.values())
        longest = max(target.tokens for target in written.values()) if any_ended else math.inf
        whole = [target.ended for target in written.values() if target.ended or target.tokens < longest]
        enough(len(whole), ENOUGH, "different targets that are not truncated")
        detail = f"{whole.count(False)} of {len(whole)} untruncated targets have no end token"
        return self.at_most(whole.count(False) / len(whole), self.max_open_share, detail)


def _needs_no_end(rows: Sequence[evidence.RowSpan]) -> str:
    """Return why these answers may do without an end token; "" where nothing says so."""
    last, times = Counter(row.last for row in rows).most_common(1)[0]
    if times >= ALIKE * len(rows) and last.rstrip()[-1:] not in PUNCTUATION:  # a space or a new line marks no end
        return f"all answers end with {last!r}, which may be their own end mark"
    if _common_length(rows) == 1:
        return "all answers have one token"
    return "a few answers recur, as class names do" if len({row.answer for row in rows}) <= len(rows) / 2 else ""


def _common_length(rows: Sequence[evidence.RowSpan]) -> int:
    """Return the number of tokens that nearly all of these answers have; 0 where they differ."""
    tokens, times = Counter(row.learned for row in rows).most_common(1)[0]
    return tokens if times >= ALIKE * len(rows) else 0


ANSWERS_EQUAL = "Both answers come from one column, or max_length truncates them. The loss then stays at ln 2."
PROMPTS_TWICE = "The answer columns hold whole conversations, and a prompt column repeats their start."
RESTATES = "an answer may begin with its question"
LABELS_EQUAL = "All labels are equal: bool() of any non-empty string is True."


class PairsDiffer(Check):
    """The chosen and the rejected answer of each pair differ.

    Neither answer repeats the prompt. Answers with individual labels do not all have the same label.
    """

    needs = frozenset({"pairs"})
    meaning = f"{ANSWERS_EQUAL} {PROMPTS_TWICE} {LABELS_EQUAL}"
    remedy = """Compare the two columns row by row. Raise max_length. Remove the prompt from the answers, or remove the
    prompt column. Count the labels of the data set."""

    max_alike_share: float = 0.5
    """Share of the pairs. Some data sets hold a few pairs with equal answers."""
    max_prompts_again_share: float = 0.5
    """Share of the pairs whose answers both begin with the whole prompt, or of the rated answers that do."""

    def judge(self, trace: Trace) -> Finding:
        for rated in trace.records(evidence.AnswersRated):
            enough(rated.rows, ENOUGH, "rated answers")
            most = self.max_prompts_again_share * rated.looked
            if len(rated.kinds) > 1 and rated.looked >= ENOUGH and rated.again > most:
                detail = f"{rated.again} of {rated.looked} answers begin with their whole prompt"
                return self.at_most(rated.again, most, detail, meant=RESTATES, causes=[PROMPTS_TWICE])
            detail = f"{rated.rows} answers have the label {' or '.join(rated.kinds)}"
            kinds, causes = len(rated.kinds), [LABELS_EQUAL]
            return self.found(kinds > 1, detail, measured=kinds, limit=2, compared=rated.rows, causes=causes)
        seen = trace.records(evidence.PairsGiven)
        pairs, most = sum(window.pairs for window in seen), self.max_prompts_again_share
        again, asked = sum(window.prompts_again for window in seen), sum(window.questions_again for window in seen)
        # no chance has two answers begin with a whole prompt
        enough(pairs, ENOUGH // 2 if max(again, asked) > most * pairs else ENOUGH, "pairs of answers")
        share = sum(window.alike for window in seen) / pairs
        detail = f"{share:.0%} of {pairs} pairs have two equal answers"
        problems = range(again) if again > most * pairs else ()
        detail += f"; both answers of {again} pairs repeat the whole prompt" if problems else ""
        if share <= (limit := self.max_alike_share) and not problems and asked > most * pairs:
            detail = f"both answers of {asked} of {pairs} pairs begin with the text of their prompt"
            return self.at_most(asked / pairs, most, detail, meant=RESTATES, causes=[PROMPTS_TWICE])
        causes = [ANSWERS_EQUAL] * (share > limit) + [PROMPTS_TWICE] * bool(problems)
        return self.at_most(share, limit, detail, problems=problems, causes=causes)


NO_PAIRS = "rows may be compared with themselves as a control"
A_COST = "the factors may be costs, which are to be lowered"
NO_MINUS = "A policy's objective is minimised: the minus sign before the advantages is missing."
AN_END = "padding may be what ends an answer"
NO_FIRST = "the first token of each answer may be a mark"
BEGINS_LATE = "The mask of the answers is not shifted with the targets."
NO_REFERENCE = "The reference is the policy itself: both share weights, or its adapters stay on."
MIXED = "Chosen and rejected answers alternate in the batch, but the loss compares its two halves, or the reverse."
BOTH_GOOD = "two answers of one prompt may both be good, or both be bad"
OF_OTHERS = "One answer's log-probabilities are looked up with the other answer's tokens."


class BetterAnswersRaised(Check):
    """The loss raises the probability of chosen or advantageous answers, and lowers that of the others.

    Column names of the data set or the batches tell the better answers, or factors in the loss whose mean is 0. A
    supervised loss may raise both. No loss raises and lowers the same rows in every step. The loss uses the first token
    in which two answers differ, no padding, and each row's own tokens. A policy moves away from its reference.
    """

    needs = frozenset({"user_code"})
    without = evidence.PreferencesLearned, "no row holds an answer that the data name chosen or rejected"
    convention = "a script may learn the rejected answers on purpose, or its columns may be named the wrong way round"
    meaning = f"""The chosen and the rejected column are swapped, by a map, a rename or the order of unpacking. Or the
    loss has the wrong sign: its log ratios are swapped, or the policy and its reference. {NO_MINUS} {ANSWERS_EQUAL}
    {BEGINS_LATE} {NO_REFERENCE} {OF_OTHERS} {MIXED}"""
    remedy = """Print a row's chosen and rejected answer as the loss receives them. Then check the signs: the loss must
    fall as the chosen answer gets likelier."""

    max_contrary_share: float = 0.25
    """Share of the answers. It is 0 for a preference loss, a reward model, or a supervised loss on chosen answers, and
    a half if answers of different prompts are compared."""
    max_late_share: float = 0.25
    """Share of the pairs, or of the padded rows. It is 0 if the mask of the answers fits, and 1 if it is off by one."""
    max_of_others_share: float = 0.1
    """Share of the rows whose loss looks up another row's tokens. No row does by chance."""
    max_alike_share: float = 0.75
    """Share of the prompts with two answers. It is 0 for pairs, a half if the loss rates each answer for itself, and 1
    if it compares answers of different prompts."""
    min_answers: int = 4
    """Answers, or pairs, needed for a share."""
    min_steps: int = 3
    """Steps that raise and lower the same rows. A few pairs of a data set have equal answers."""

    def judge(self, trace: Trace) -> Finding:
        seen = trace.one(evidence.PreferencesLearned)
        if seen.cancelled >= self.min_steps:
            detail = f"the loss raises and lowers the same rows in each of {seen.cancelled} steps"
            return self.found(False, detail, measured=seen.cancelled, limit=0, meant=NO_PAIRS, causes=[ANSWERS_EQUAL])
        if seen.unmoved >= self.min_steps - 1:
            detail = f"every margin between two answers is 0 in {seen.unmoved} losses, after the weights have moved"
            return self.found(False, detail, measured=seen.unmoved, limit=0, meant=NO_PAIRS, causes=[NO_REFERENCE])
        if seen.of_others >= max(self.min_answers, (limit := self.max_of_others_share) * seen.compared):
            detail = f"in {seen.of_others} of {seen.compared} rows the loss looks up the tokens of another row"
            return self.at_most(seen.of_others / seen.compared, limit, detail, meant=NO_PAIRS, causes=[OF_OTHERS])
        if seen.pulled_alike > (limit := self.max_alike_share) * seen.prompts and seen.prompts >= 2 * self.min_answers:
            detail = f"both answers are raised, or both lowered, for {seen.pulled_alike} of {seen.prompts} prompts"
            return self.at_most(seen.pulled_alike / seen.prompts, limit, detail, meant=BOTH_GOOD, causes=[MIXED])
        if seen.learned_late > (limit := self.max_late_share) * seen.pairs and seen.pairs >= self.min_answers:
            detail = f"the loss leaves out the first token that differs in {seen.learned_late} of {seen.pairs} pairs"
            return self.at_most(seen.learned_late / seen.pairs, limit, detail, meant=NO_FIRST, causes=[BEGINS_LATE])
        if seen.padding_used > self.max_late_share * seen.padded and seen.padded >= self.min_answers:
            detail = f"the loss uses the padding behind the end as the next token in {seen.padding_used} of"
            share, detail = seen.padding_used / seen.padded, f"{detail} {seen.padded} padded rows"
            return self.at_most(share, self.max_late_share, detail, meant=AN_END, causes=[BEGINS_LATE])
        contrary = seen.chosen_lowered + seen.rejected_raised
        named = contrary + seen.chosen_raised + seen.rejected_lowered
        enough(named, self.min_answers, "answers that the data name")
        lowers = seen.chosen_lowered or seen.rejected_lowered
        required(lowers or not (seen.chosen_raised and seen.rejected_raised), "the loss raises answers of both names")
        better, worse = seen.chosen_lowered + seen.chosen_raised, seen.rejected_raised + seen.rejected_lowered
        required((better and worse) or contrary in (0, named), "answers of one name are raised and lowered")
        detail = f"the loss lowers {seen.chosen_lowered} of {better} better answers"
        detail += f" and raises {seen.rejected_raised} of {worse} worse ones"
        detail += f", by columns {seen.where}" if seen.where else ", by advantages, which are factors in the loss"
        more: dict[str, Any] = {} if seen.where else {"meant": A_COST, "causes": [NO_MINUS]}
        return self.at_most(contrary / named, self.max_contrary_share, detail, **more)


def _distinct(rows: Iterable[evidence.RowSpan]) -> list[evidence.RowSpan]:
    return list({(row.row, row.answer): row for row in rows}.values())
