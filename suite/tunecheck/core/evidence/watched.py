"""A training that is not ours: its settings, what it reported, saved and evaluated."""

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


SlipKind = Literal[
    "variable", "parameter", "result", "option", "exchanged", "reordered", "best", "mode", "term", "idle", "mean"
]


class Slip(Frozen):
    """What a script's source does by mistake, as its text tells."""

    kind: SlipKind
    name: str
    """What is never used, or what is wrong, in names of the source."""
    file: str
    line: int


class SourceRead(Record):
    """The script's own modules, as far as they could be read."""

    files: int
    slips: tuple[Slip, ...]


class Rates(Record):
    """The optimizer's learning rates before any schedule, against those declared tensor by tensor."""

    tensors: int
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
    without_gradient: int = 0
    """Those of them before which none of its tensors had a gradient."""
    waiting: int = 0
    """Steps of the model's own before which a tensor of it had a gradient other than zero."""
    anew: bool = False
    """Whether it takes the place of one of the model's own, of the same class, after these few steps."""
    unheld: int = 0
    """Tensors with gradients that no optimizer holds, where this one holds those of the model's own."""


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
    trained: int
    """Trained ones with the values that they had by then."""
    earlier: tuple[str, ...]
    """Those with the values from before the training instead."""
    other: int
    """Tensors of the shape of a trained one with values that neither has: averages, other dtypes, other models."""
    without_adapters: int = 0
    """Weights of layers that have adapters, as they were before, where nothing of the adapters is written with them."""
    unloaded: bool = False
    """Whether they are saved of a model whose adapters peft took off, and did not merge."""
    wrapped: int = 0
    """Weights in a folder of save_pretrained that have the names of layers within adapters, which no base has."""
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
    within: bool = False
    """Whether each of several layers that have kept tensors has lost ones too, as of a base that learns with LoRA."""
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
    taken: int
    misnamed: tuple[str, ...]
    """Those left out that have the shape of a tensor which none was loaded into, and its name but for a prefix or one
    part within; less those whose values the model has by now."""
    itself: bool = False
    """Whether it holds the module's own tensors, which have learnt since the training began."""


class OtherModelDrops(Record):
    """Another model, called between two steps, that learns nothing, and drops in train mode or was never loaded."""

    model: str
    """Its class."""
    normalises: bool = False
    """Whether a normalisation of it takes its batch's statistics."""
    drawn: bool = False
    """Whether all its norms are as they are built, unlike the trained model's."""


class ScoresGiven(Record):
    """What the loss's functions are computed of, as its graph tells; DOUBTFUL says what most of these numbers count."""

    functions: int
    probabilities: tuple[str, ...]
    """Of those that are given probabilities: what the graph calls the two functions."""
    crossed: int = 0
    unnormalised: int = 0
    outside: int = 0
    of_itself: int = 0
    exchanged: int = 0
    flat: int = 0
    over_positions: int = 0
    again: int = 0
    mispaired: int = 0
    softened: int = 0
    reversed: int = 0
    weighed_up: int = 0
    cut_at_0: int = 0
    parts_alike: int = 0
    unread: int = 0
    far_off: int = 0
    ratios: int = 0
    """Ratios of likelihoods that the loss clips around 1, as a policy's does."""
    off_policy: int = 0
    without_reference: int = 0
    rewarded: int = 0
    unbounded: int = 0
    nothing: tuple[str, ...] = ()
    """Why the loss teaches nothing, by its own functions."""
    foreign: int = 0
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
    passes: int = 1
    """Of each loss, the most: of a pair of answers there are two."""


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
