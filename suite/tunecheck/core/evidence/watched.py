"""A training that is not ours: the rows that it was given, what it reported, how it evaluated."""

from dataclasses import field
from typing import Literal

from tunecheck.core.frozen import Frozen, Record


class PremisesOpen(Record):
    """Premises that what the training did, not what it declares, leaves open."""

    reasons: dict[str, str]
    """Premise to why."""


class WindowEnded(Record):
    """All steps that are listened to are done; the training may go on."""

    steps: int


class Setting(Frozen):
    """A number that a script chose, of a kind with a usual range."""

    kind: str
    value: float
    where: str
    """The object and its attribute."""


class SettingsGiven(Record):
    """The numbers that a training's own objects were given, each once."""

    settings: tuple[Setting, ...]


class TargetWritten(Frozen):
    """What an encoder-decoder learns to write for one row."""

    tokens: int
    digest: str
    ended: bool
    """Whether an end token is the last of them, padding that is learned left out."""


class RowRead(Frozen):
    """A row of tokens that a model of an objective of its own was called with."""

    digest: str
    tokens: int
    """Without padding, as its mask says."""
    last: int
    """The last one of them."""
    different: int = 2
    """How many different ones there are."""


class StepInputs(Record):
    """The batches of one step of any training, so that steps can be compared with each other."""

    step: int
    digests: tuple[str, ...]
    """One digest a micro-batch, over all tensors that the model is given."""
    opaque: bool = False
    """Whether the model is also given an object whose contents are unknown, so that equal digests prove nothing."""
    targets: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Number of a linear head's classes to those of its rows, where each row has one."""
    written: tuple[TargetWritten, ...] = ()
    """The targets of an encoder-decoder whose end token is known."""
    read: tuple[RowRead, ...] = ()
    """Rows with a mask that were read in an early step, where it is not known which rows are given."""
    equal: tuple[str, ...] = ()
    """Names of two inputs of tokens that are equal in the first micro-batch."""


class RowsGiven(Record):
    """The rows of all windows of the first epoch, each known by its tokens."""

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
    """Rows in which no token is supervised."""
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
    turns: int = 0
    """Turns of the model's own, in the chat template's words, in rows that are learned to their end."""
    turns_unfilled: int = 0
    """Those of them that follow another one, and are empty."""
    turns_unopened: int = 0
    """Rows with the mark of a user's turn and none of the model's own."""
    users_learned: int = 0
    """Rows whose user's turns are learned, and what stands before them, or a turn of the model's own, is not."""
    begins_again: int = 0
    """Rows that begin with the start token and have it again where their answer begins."""
    begun_late: int = 0
    """Tokens by which all answers begin behind what stands in front of each, as the end of a template does."""
    padding_ends: int = 0
    """Rows in which a token of padding that is attended to, and not learned, follows what is learned."""
    expected: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Expectation of the text that is learned to what rows learn that do not meet it; without those that nobody could
    compare."""


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
    """Those of which both have the same tokens."""
    prompts_again: int = 0
    """Those of which both answers begin with the whole prompt again, whose beginning all prompts share."""


class PreferencesLearned(Record):
    """Which rows the loss of early steps makes likelier, of those that hold an answer which the data name."""

    where: str
    """The names of the two columns, the better one's first."""
    chosen_raised: int
    chosen_lowered: int
    rejected_raised: int
    rejected_lowered: int


class AnswersRated(Record):
    """A data set whose answers stand alone, each with a label that says whether it is a good one, as KTO has them."""

    rows: int
    """Of the whole data set."""
    kinds: tuple[str, ...]
    """The labels that it has."""


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
    asked_for_next: int = 0
    """Rows that are asked for the next token at one position, and whose model was called again with another one
    there."""
    seeing_next: int = 0
    """Those of them whose scores at that position were others then."""
    padding_both_ways: int = 0
    """Padded positions of models whose attention reads in both directions."""
    padding_shown: int = 0
    """Those of them that no mask hides."""
    padding_guessed: bool = False
    """Whether no object names the token of padding: rows end in more or less of it, and hold it nowhere else. Or the
    mask hides other tokens than those that are named."""
    tokens: int = 0
    """Tokens that models of transformers were given whose attention hides later positions."""
    unseen: int = 0
    """Those of them behind the last position of their row that the loss uses."""
    followed: int = 0
    """Rows with padding behind them that is no end token."""
    asked_behind: int = 0
    """Those of them whose last token is asked for that padding."""
    answers: int = 0
    """Rows of a causal model whose labels begin behind a prompt, no part of which the loss uses."""
    used_late: int = 0
    """Those of them whose first label the loss leaves out, though it uses the second."""
    used_behind: int = 0
    """Those of them whose last labelled position the loss uses, as if a label followed."""


class EvaluationRows(Record):
    """Rows of an evaluation, looked up among those that are trained on; the first ones of each data set.

    In a loop those that one loader shuffles and another reads in order.
    """

    rows: int
    among: int
    """Those of them that are trained on."""
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
    """Supervised tokens."""
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
    """Whether an end token is supervised."""


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


class Rates(Record):
    """The optimizer's learning rates before any schedule, against those declared tensor by tensor."""

    tensors: int
    """Tensors for which one is declared."""
    wrong: dict[str, str]
    """Tensor to its rate and the declared one."""


class ScheduleTaken(Record):
    """How far a loop has stepped its schedule by its end, or a Trainer is to, and what the schedule was made for."""

    made_for: int
    """Steps to its end; 0 where it has none, or does not say."""
    taken: int
    """Steps of it, those after the ones that are listened to included."""
    optimizer_steps: int
    warmup: int = 0
    """Steps in which its rate rises."""
    halves: float = 0.0
    """Steps in which one without an end, as StepLR is, halves its rate; 0 for others."""
    never: bool = False
    """Whether no schedule of the optimizer was ever stepped."""


class LoopEvaluations(Record):
    """Passes in which nothing learns of a loop's model that drops, or normalises by its batches.

    Between few of the steps that were listened to; or over loaders, until the script ends.
    """

    passes: int
    dropping: int
    """Those in train mode."""
    learnt: int = 0
    """Batches of which the model learnt."""
    quiet_at_the_end: int = 0
    """The last ones of these, in which nothing dropped or took statistics."""


class OtherOptimizer(Record):
    """An optimizer beside those of the trained model, none of whose tensors the model's own ones hold."""

    name: str
    """Its class."""
    tensors: int
    model_steps: int
    """Steps of the model's own optimizers in the window."""
    steps: int = 0
    """Steps that it made in the window."""
    without_gradient: int = 0
    """Those of them before which none of its tensors had a gradient."""
    waiting: int = 0
    """Steps of the model's own before which a tensor of it had a gradient other than zero."""
    anew: bool = False
    """Whether it takes the place of one of the model's own, of the same class, after these few steps."""


class RanksScored(Record):
    """Whether adapters whose ranks are allocated while they train (AdaLoRA) were told of the steps listened to."""

    steps: int
    begins: int
    """Step from which ranks are to be taken away, by the configuration."""
    scored: int
    """Tensors whose importance was ever computed, which each call of update_and_allocate does."""


class Written(Record):
    """What the script wrote to a file, of the tensors that it trains and that had moved by then."""

    own: bool
    """Whether the model's own save_pretrained wrote it."""
    tensors: int
    """All that were written."""
    trained: int
    """Trained ones with the values that they had by then."""
    earlier: tuple[str, ...]
    """Those with the values from before the training instead."""
    other: int
    """Tensors of the shape of a trained one with values that neither has: averages, other dtypes, other models."""
    without_adapters: int = 0
    """Weights of layers that have adapters, as they were before, where nothing of the adapters is written with them."""
    resting: int = 0
    """Of the `other`: tensors that were in the model before the training, frozen, as those of another adapter are."""
    returned: bool = False
    """Whether the model itself has the values from before the training again, after steps that moved it."""
    start: bool = False
    """Whether every trained tensor that has moved is in it with the values from before the training."""
    overwrites: bool = False
    """Whether the file held trained tensors, and holds those from before the training now."""
    first: bool = False
    """Whether it was written before the first step, and the script itself wrote nothing trained by its end."""
    lost: tuple[str, ...] = ()
    """Trained tensors that no file since the first step holds. Told at the script's end, where all that the files hold
    is known: `trained` of the others, and `other` matrices of other models."""
    leading: bool = False
    """Whether the model's first trained tensor is lost."""
    scoring: bool = False
    """Whether a lost matrix gives few numbers, as a classifier or a reward's head does."""
    blank: bool = False
    """Whether every LoRA B in it is 0, as of an adapter that never learned."""
    misnamed: tuple[str, ...] = ()
    """Trained tensors whose names have the values of another one, each with that one's name."""


class WrittenByScript(Record):
    """What a loop's own code wrote into trained tensors between two optimizer steps, and nothing else did."""

    lines: dict[str, str]
    """Tensor to the file and line of its last write, where none gave it values that it had before."""


class StateLoaded(Record):
    """A state dict that the script loaded into the model or a part of it, and what that left out."""

    into: str
    """Class of the module."""
    offered: int
    """Tensors of the state dict."""
    taken: int
    misnamed: tuple[str, ...]
    """Those left out that have the shape of a tensor which none was loaded into, and its name but for a prefix or one
    part within; less those whose values the model has by now."""
    itself: bool = False
    """Whether it holds the module's own tensors, which have learnt since the training began."""


class OtherModelDrops(Record):
    """Another model, called between two steps, learns nothing and is in train mode, so that it draws dropout.

    Or its weights were never loaded.
    """

    model: str
    """Its class."""
    normalises: bool = False
    """Whether a normalisation of it takes its batch's statistics."""
    drawn: bool = False
    """Whether all its norms are as they are built, unlike the trained model's."""


class ScoresGiven(Record):
    """What the cross entropies and log-softmaxes of the loss are computed of, as its graph tells."""

    functions: int
    """Functions that expect scores, or log-likelihoods."""
    probabilities: tuple[str, ...]
    """Of those that are given probabilities: what the graph calls the two functions."""
    crossed: int = 0
    """Losses of each output of a model with each of as many targets, as torch stretches [n, 1] and [n] to [n, n]."""
    unnormalised: int = 0
    """Negative log-likelihoods of scores that are no logarithms of probabilities."""
    outside: int = 0
    """Binary cross entropies that learn targets below 0 or above 1."""
    of_itself: int = 0
    """Log-softmaxes of scores of rows with one another, in which each row scores itself highest."""
    exchanged: int = 0
    """Negative log-likelihoods whose scores a view gave their classes second, where they had them last."""
    flat: int = 0
    """Log-softmaxes of scores whose range is so small that no likelihood is far above another."""
    over_positions: int = 0
    """Log-softmaxes over the positions of a row, of scores of the tokens that the model reads."""
    again: int = 0
    """Cross entropies of the same scores and targets as another one of the loss."""
    mispaired: int = 0
    """Those of pairs whose positives are two other texts, where each text is encoded twice."""
    unreached: tuple[str, ...] = ()
    """Losses most of whose targets lie out of the range of the outputs."""


class LossDivided(Record):
    """Who divides the losses of a window's micro-batches, so that their sum is a mean."""

    micro_batches: int
    """Of the first window."""
    by: str
    """The Trainer, compute_loss or the loop; empty where nobody does."""
    uneven: bool = False
    """Whether the micro-batches of the window count differently, and not by their supervised tokens."""


class WorkerBatches(Record):
    """Batches of a loader whose workers iterate over one data set of their own each."""

    workers: int
    rounds: int
    """Times that each of them has handed out a batch, of those that were looked at."""
    distinct: int
    """Rounds that began with different batches."""
    alike: int
    """Rounds in which two workers handed out the same batch."""


class UserCode(Record):
    """A part of the script that takes part in the training."""

    role: str
    """The Trainer's method that it overrides, its argument that it is, callback; script: the line that trains."""
    name: str
    """As Python qualifies it."""
    file: str
    line: int
    """Where it is defined; of a script, the line that trains."""
    first_line: int = 1
    """Line of the file that `source` begins with."""
    source: tuple[str, ...] = ()
    """Its lines, or those of the function that trains: some hundreds around its line."""


class Logged(Record):
    """What the trainer told its log."""

    steps: int
    """Optimizer steps that were done."""
    loss: float | None = None
    learning_rate: float | None = None


class BestChosen(Record):
    """By what the Trainer is to choose its best checkpoint."""

    metric: str
    greater: bool
    """Whether the highest value is the best."""


class EvaluationSeen(Record):
    """An evaluation of the trainer's, seen from outside."""

    steps: int
    """Optimizer steps that were done."""
    split: str
    reported_loss: float | None
    """None where it reports none."""
    token_mean_loss: float | None
    """Mean over all supervised tokens, from its own logits in float64; None where no logits were seen."""
    batch_mean_loss: float | None
    """Mean over its batches' means, weighted by their rows, as transformers' Trainer takes it; None likewise."""
    tokens: int
    training_modules_during: int
    """Modules in train mode at a forward pass: 0."""
    gradients_enabled: bool
    weights_changed: bool
    rows: int | None = None
    """Rows that were given to the model; None where they cannot be counted."""
    dataset_rows: int | None = None
    """Rows that the evaluation's data set makes due; None where it has no length."""
    token_mean_uniform: float | None = None
    """The same means as above of the loss against a uniform guess, a part of a smoothed loss."""
    batch_mean_uniform: float | None = None
