"""The rows of a training that is not ours: what it was given, and what of them is learned."""

from dataclasses import field
from typing import Literal

from tunecheck.core.frozen import Frozen, Record


class TargetWritten(Frozen):
    """What an encoder-decoder learns to write for one row."""

    tokens: int
    digest: str
    ended: bool
    """Whether an end token is the last of them, padding that is learned left out."""
    begun: bool = False
    """Whether the first one is the start token, which the model itself puts before them."""
    filled: int = 0
    """How many are learned behind the end token."""
    copied: bool | None = None
    """Whether they stand as they are in the row that the encoder reads: at its beginning, or as half of it. None where
    that is not looked at."""


class RowRead(Frozen):
    """A row of tokens that a model of an objective of its own was called with."""

    digest: str
    tokens: int
    """Without padding, as its mask says."""
    last: int
    different: int = 2


class TextsCut(Record):
    """What tokenizers cut off of the texts that a script gave them with one length limit."""

    max_length: int
    """0 stands for a tokenizer's own limit."""
    texts: int = 0
    cut: int = 0
    kept_tokens: int = 0
    lost_tokens: int = 0


class StepInputs(Record):
    """The batches of one step of any training, so that steps can be compared with each other."""

    step: int
    digests: tuple[str, ...]
    """One digest a micro-batch, over all tensors that the model is given."""
    opaque: bool = False
    """Whether the model is also given an object whose contents are unknown, so that equal digests prove nothing."""
    targets: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Number of a head's classes to those of its rows, where each has one; of more the least and largest, repeated."""
    aims: tuple[str, ...] = ()
    """Digests of a loss's targets, one number for each row, where they follow no pattern."""
    written: tuple[TargetWritten, ...] = ()
    """The targets of an encoder-decoder whose end token is known."""
    read: tuple[RowRead, ...] = ()
    """Rows with a mask that were read in an early step, where it is not known which rows are given."""
    equal: tuple[str, ...] = ()
    """Names of two inputs of tokens that are equal in the first micro-batch."""
    unread: tuple[str, ...] = ()
    """Tokens that a loader yields and no pass of the early steps reads, though each reads the others twice."""
    paired: bool | None = None
    """Whether losses have targets in the order of the rows that the model reads; None where nobody can tell."""
    constant: str | None = None
    """What the model is given of one number a row, where all rows have the same; empty where they differ."""
    size: float | None = None
    """Root mean square of what a layer multiplies of the model's input as it is, the largest."""
    twins: bool | None = None
    """Whether the same weights read two equal tensors of a loader's batch; None where that is not looked at."""
    continued: int = 0
    """Rows that a decoder alone was to go on with."""
    behind_padding: int = 0
    """Those of them that end in padding."""
    known: int = 0
    """Rows of tokens with one target each, whose whole input came before."""
    contrary: int = 0
    """Those of them whose target was another then."""
    answers: int = 0
    """Targets of a regression on tokens, one a row."""
    answers_from: float = 0.0
    answers_to: float = 0.0


class TokensLearned(Record):
    """The targets of one vocabulary in early steps, as the loss's graph tells them."""

    outputs: int
    """Scores of a position."""
    rows: int
    targets: int
    most: int
    """Those that are one token, the most frequent one."""
    unknown: int
    """Those that the tokenizer has no piece for."""
    runs: int = 0
    """Times that one token comes again and again, where it hardly comes otherwise."""
    spelt: int = 0
    """Rows of CTC that all have one length and end in more or less of one token."""
    over_all: int = 0
    """Losses that are divided by all their positions, though not all learn."""


class RowsGiven(Record):
    """The rows of all windows of the first epoch, each known by its tokens; DOUBTFUL says what some numbers count."""

    rows: int
    dataset_rows: int | None
    """Rows of the data set; None where it has no length."""
    repeated: tuple[str, ...]
    """Beginnings of rows that came more often than the data set holds them."""
    uncertain: int
    """Rows that came again while nobody can tell how often the data set holds them."""
    end_tokens_supervised: int
    """End tokens after a supervised token whose label is the end token."""
    end_tokens_masked: int
    """End tokens after a supervised token whose label is masked: the model is never told to stop."""
    first_token_supervised: int
    """Rows whose second token is supervised already, so that no prompt is masked in them."""
    unsupervised: int
    replayed: tuple[str, ...] = ()
    """Beginnings of rows that the training which this one resumes had done in the same epoch."""
    resumed_after: int = 0
    """Rows of that epoch which are known to have been done."""
    ends_or_padding: int = 0
    """Masked end tokens that come again to the row's end and are attended to: all of them may be padding."""
    beginnings: int = 0
    """Rows that are learned from their first token on, and none of whose last tokens is."""
    padded_before: int = 0
    """Rows that begin with padding which is attended to, of a token that no tokenizer names."""
    positions_from: int = 0
    """Lowest position at which a row begins, where all rows have positions of their own."""
    turns: int = 0
    """Turns of the model's own, in the chat template's words, in rows that are learned to their end."""
    turns_unfilled: int = 0
    """Those of them that follow another one, and are empty."""
    turns_unopened: int = 0
    """Rows with the mark of a user's turn and none of the model's own."""
    users_learned: int = 0
    headers_learned: int = 0
    begins_again: int = 0
    begins_twice: int = 0
    begun_late: int = 0
    """Tokens by which all answers begin behind what stands in front of each, as the end of a template does."""
    answers_shown: int = 0
    begun_astray: int = 0
    prompts_share: float = 0.0
    """Of rows that are all learned whole, the share of tokens in front of the end of their template; 0 without one."""
    padding_ends: int = 0
    expected: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Expectation of the learned text to what rows learn that do not meet it; only those that could be compared."""


class BaseTokens(Record):
    """Numbers of the first window's tokens, against the tokenizer that lies beside the base's weights."""

    tokens: int
    """Different ones that this tokenizer knows, and whose row of the embedding is the base's."""
    other: int
    """Those of them that have another number there."""
    example: str = ""


class PairsGiven(Record):
    """Pairs of a chosen and a rejected answer in one window, as the model is given them."""

    step: int
    pairs: int
    alike: int
    prompts_again: int = 0
    """Those of which both answers begin with the whole prompt again, whose beginning all prompts share."""
    questions_again: int = 0
    """The same without what all prompts begin and end with."""


class PreferencesLearned(Record):
    """Which rows the loss of early steps makes likelier, of those whose answers the data or the loss rate."""

    where: str
    """The names of the two columns, the better one's first; empty where advantages tell which rows are better."""
    chosen_raised: int
    chosen_lowered: int
    rejected_raised: int
    rejected_lowered: int
    cancelled: int = 0
    """Steps that raise rows and lower rows, where those are the same in each such step."""
    pairs: int = 0
    """Rows that are lowered beside a raised one, where the loss uses the first token that differs, or the next one."""
    learned_late: int = 0
    """Those of them where it uses the next one alone."""
    unmoved: int = 0
    """Losses of margins behind the first steps, if all margins of all of them are 0."""
    of_others: int = 0
    """Rows at whose places the loss looks up the tokens of another row."""
    compared: int = 0
    """Rows whose tokens are told from others."""
    padded: int = 0
    """Rows with padding behind their end."""
    padding_used: int = 0
    """Those of them of which the loss uses the first padding as a next token."""
    prompts: int = 0
    """Pairs of rows that begin alike, as no third one does, in steps that raise rows and lower rows."""
    pulled_alike: int = 0
    """Those of them of which the loss raises both, or lowers both."""


class AnswersRated(Record):
    """A data set whose answers stand alone, each with a label that says whether it is a good one, as KTO has them."""

    rows: int
    """Of the whole data set."""
    kinds: tuple[str, ...]
    looked: int = 0
    """Rows of which the prompt and the answer are known; the first ones."""
    again: int = 0
    """Those of them whose answer begins with the whole prompt."""


class PositionGradients(Record):
    """At which positions the loss of one step pulls, by its gradient."""

    step: int
    padded: int
    """Positions outside of their rows' real tokens."""
    padding_share: float
    """Norm of the gradient by the hidden states there over that of all; 0 without any."""
    raising: int
    """Positions, of those looked at, at which the gradient by the logits raises a token, and the next is another. Of
    several passes those of the one with most of the following."""
    raising_own: int
    """Those of them where it is the token that is read there."""
    raising_second: int = 0
    """Those of them where it is the one behind the next token, and another than that."""
    raising_before: int = 0
    """Those of them where it is the one in front of the token read there, and another than that."""
    asked_for_next: int = 0
    """Rows asked for the next token at one position, whose model was called again with another one there."""
    seeing_next: int = 0
    """Those of them whose scores at that position were others then."""
    masked: int = 0
    """Positions at which the loss asks for another token than the one read, and nearly all of them read one token. If
    there are none, those among the learned ones that are not learned, and nearly all read one token."""
    unmasked: int = 0
    """Positions of the same passes at which it asks for the token that is read there."""
    masks_asked: int = 0
    """Positions of theirs at which it asks for that one token, which stands for those that are masked."""
    padding_both_ways: int = 0
    """Padded positions of models whose attention reads in both directions."""
    padding_shown: int = 0
    text_both_ways: int = 0
    """Positions of such models that hold text, without the last one of each row."""
    text_hidden: int = 0
    padding_guessed: bool = False
    """Whether no object names the token of padding: rows end in more or less of it, and hold it nowhere else. Or the
    mask hides other tokens than those that are named."""
    tokens: int = 0
    """Tokens that models of transformers were given whose attention hides later positions."""
    unseen: int = 0
    """Those of them behind the last position of their row that the loss uses."""
    marked: int = 0
    """Rows of encoders that begin, and end, with one token each, and most of whose positions the loss uses."""
    tags_early: int = 0
    """Those of them that it uses from the first token on, and not up to the last two."""
    tags_late: int = 0
    """Those of them that it uses from the third token on."""
    split: int = 0
    """Those of them in which a word is several tokens."""
    tags_counted: int = 0
    """Those of these of which it uses as many of the first tokens as there are words."""
    followed: int = 0
    """Rows with padding behind them that is no end token."""
    asked_behind: int = 0
    """Those of them whose last token is asked for that padding."""
    answers: int = 0
    """Rows of a causal model whose labels begin behind a prompt, no part of which the loss uses."""
    used_late: int = 0
    """Those of them whose first label the loss leaves out, though it uses the second."""
    rows_alone: int = 0
    """Rows that the script's own model was called with again, while the rows between had other tokens."""
    rows_mixed: int = 0
    """Those of them whose results were others then."""
    used_behind: int = 0
    """Those of them whose last labelled position the loss uses, as if a label followed."""


class RowsUsed(Record):
    """Rows of early steps, and what the loss uses of them: it tells labels that nobody knows."""

    rows: int
    """With a position that it uses."""
    beginnings: int
    """Those of them that it uses from their first token on, and none of whose last tokens."""
    begun_late: int
    """Tokens behind the end of a template, as all rows have it, that it leaves out before it uses each row."""
    answers: int
    """Different rows whose last tokens it uses, and not their first ones; without the longest. 0 where a model of
    transformers may have written them."""
    alike: int
    """Those of them that end with the most frequent last token."""
    loose: int
    """Those of them whose last token stands between others in an answer, as no end token does."""
    prompts_share: float = 0.0
    """As in RowsGiven."""


class EvaluationRows(Record):
    """Rows of an evaluation, looked up among those that are trained on; the first ones of each data set.

    In a loop those that one loader shuffles and another reads in order.
    """

    rows: int
    among: int
    trained: int
    """Rows of the training's data set that were looked at."""


class RowSpan(Frozen):
    """Which part of a row is learned; its tokens are those that are attended to."""

    micro_batch: int
    """Number of it, of all that were listened to."""
    row: str
    """Digest of its tokens, 12 hex digits; that of `answer` is of the supervised ones."""
    answer: str
    tokens: int
    learned: int
    first: int
    """Place of the first of them; -1 without any."""
    column: int
    """Of the padded batch, behind the last of them."""
    behind: int
    """Tokens behind the last of them."""
    stretches: int
    """Runs of supervised tokens."""
    documents: int
    """Beginnings of positions, where it has some of its own; else 1."""
    last: str
    """Text of the last supervised token, or "token 13" where no tokenizer is known; empty without any."""
    ended: bool


class RowSpans(Record):
    """All rows that were listened to, one after the other."""

    rows: tuple[RowSpan, ...]
    end_tokens: tuple[int, ...]
    """Those that the tokenizer or the model's configuration names; empty where nothing does."""
    begin_alike: bool = False
    """Whether all rows begin with the same few tokens, as those of a template do and parts of running text do not."""


class RowPiece(Frozen):
    """Neighbouring tokens of a row that the training treats alike."""

    kind: Literal["learned", "context", "padding", "cut"]
    """Context is read and not learned; a cut is left out of the trace."""
    tokens: int
    text: str = ""
    """Token ids where no tokenizer is known; of padding each token once."""
    labels: str = ""
    """Labels of a learned piece where they are not its tokens."""


class RowShown(Record):
    """One of the first rows of the first step, as the model gets it."""

    pieces: tuple[RowPiece, ...]
    tokens: int
    """Without padding."""
    learned: int
    longest: int | None
    """Tokens that the run allows in a row; None where it declares no limit."""
    ended: bool | None
    """Whether the last token is an end token; None where none is known."""
