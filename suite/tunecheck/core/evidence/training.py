"""The steps: gradients, updates, what the layers and the adapters do."""

import math
from dataclasses import field

from tunecheck.core.frozen import Record


class Step(Record):
    """One optimizer step as the trainer reported it, and what the probes read off its optimizer."""

    step: int
    """Counted from 0."""
    loss: float
    """Mean negative log-likelihood per supervised token of the whole accumulation window, as reported."""
    learning_rate: float
    """Read from the optimizer just before it stepped."""
    gradient_norm: float
    """Before clipping, as reported."""
    supervised_tokens: int
    tokens: int
    applied: bool
    """False when the gradient scaler skipped the step."""
    seconds: float
    allocated_bytes: int | None = None
    """Allocator's current bytes after the step, gradients cleared; None on the CPU."""
    without_rate: bool = False
    """Whether the rate of every group was 0, so that the step changed nothing."""


class TrainingState(Record):
    """The model's switches at the forward passes of one step, against what they must be in training."""

    step: int
    forwards: int
    """Forward passes seen between the beginning of the step and the end of its last backward pass."""
    modules_in_eval: tuple[str, ...] = ()
    adapters_disabled: tuple[str, ...] = ()
    adapters_inactive: tuple[str, ...] = ()
    """Adapted layers whose active adapters are others than the trained one."""
    adapters_merged: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    """Tensors of the expected trainable set that do not require a gradient, or do not exist."""
    unfrozen: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    """What else is not as configured, in words: autocast, attention, checkpointing, fp32 products, adapters' scale."""
    random_state: str = ""
    """Digest of the device's random state before the first forward pass; empty where the step drew nothing from it."""
    dropping_nothing: tuple[str, ...] = ()
    """Modules that drop in training, beside what learns, where the whole model was in eval mode from its start on."""
    uncalibrated: tuple[str, ...] = ()
    """Normalisations in eval mode by statistics that no batch has changed: a mean of 0, a variance of 1."""


class Gradients(Record):
    """Gradients of one step after backward, unscaled and before clipping."""

    step: int
    zero: tuple[str, ...]
    nonfinite: tuple[str, ...]
    frozen_with_gradient: tuple[str, ...]
    norms: dict[str, float]
    """Gradient norm by group: lora_A, lora_B, lora_magnitude_vector, other."""
    left_over: tuple[str, ...]
    """Trainable tensors that held a gradient other than zero when the step began."""
    micro_batch_tokens: tuple[int, ...]
    subnormal: float | None = None
    """Share of the elements other than 0 that are below fp16's smallest normal number; None in other precisions."""


class Oracle(Record):
    """One accumulation window computed again by other code: its rows without masks, losses summed."""

    step: int
    loss: float
    replayed_loss: float | None = None
    """The trainer's own loss of this window without dropout, where the step itself had dropout: its forward and
    backward passes were made again. None where the step's own passes were compared."""
    gradient_error: float
    """Norm of the difference of both gradients over the norm of the oracle's."""
    worst_gradient_error: float
    """Largest such error of a single tensor whose gradient is not negligible."""
    worst_gradient: str
    norm: float
    directional_error: float | None = None
    """Relative error of the loss's slope along the gradient, by a loss to either side. None if not configured."""
    split: str
    """How the trainer split the window, for the reader: "2 x 2 rows"."""
    of_means: bool = False
    """Whether it is the mean of the micro-batches' means, recorded besides where nobody declares the mean."""


class OwnLoss(Record):
    """One window's loss in float64 from the logits that the trainer computed, and its gradient by them."""

    step: int
    loss: float | None
    """Mean negative log-likelihood; None where the logits cannot be assigned to the window's tokens."""
    gradient_error: float | None
    """Relative error of the loss's gradient by the logits, against float64 rounded to their dtype, at sampled
    supervised positions and at all others, where it must be 0; None where none arrived."""
    gradient_noise: float | None = None
    """A unit in the last place of that gradient's largest element, over its norm: one that rounds otherwise."""
    foreign_rows: int = 0
    """Rows of the forward passes whose tokens are not those of a row of the window."""
    model_repeats: bool | None = None
    """Whether the model computes the first micro-batch again to the last bit. None where that was not tried."""
    random_states: tuple[str, ...] = ()
    """Digests of the random state before each forward pass of the window, where dropout draws from it."""


class WeightGradient(Record):
    """Gradients of some trained linears in one step, against their own inputs and their outputs' gradients."""

    step: int
    linears: int
    """Those of these dtypes that were called as modules; 0 where none was."""
    error: float
    """Largest relative one: norm of the difference over the norm of the sum of products, of a weight or a bias."""
    worst: str
    dtypes: tuple[str, ...]
    """Those of outputs and weights, in which the products and the gradient are rounded."""


class LayerGradients(Record):
    """Every decoder layer's backward pass alone, after training, against differences of its own forward."""

    layers: int
    error: float
    """Largest relative error of a layer's slope along its gradient."""
    worst: int


class CurrentWeights(Record):
    """A forward pass after training, with all trained tensors halved, against those tensors."""

    modules: int
    """Those with trained tensors of their own."""
    error: float
    """Largest relative error of a module's product; infinite when one was not called."""
    worst: str


class Recomputation(Record):
    """One row's gradient with gradient checkpointing and without, under the same random state."""

    layers: int
    """Modules that checkpoint."""
    gradient_error: float
    """Norm of the difference over the norm of the gradient without."""
    repeat_error: float
    """The same of two gradients without: the arithmetic's own noise."""


class Update(Record):
    """One optimizer step against closed-form AdamW fed with the same gradients."""

    step: int
    expected_learning_rate: float
    update_error: float
    """Largest over the tensors: norm of (actual - expected update) over the norm of the expected one."""
    worst_update: str
    moment_error: float
    """The same for the optimizer's first and second moments."""
    moved: bool
    """False when not one trainable tensor changed in this step."""
    moved_share: float | None = None
    """Of the elements with a gradient, those that changed; None without any."""
    length_error: float | None = None
    """How far all updates together are along the expected ones, over the expected ones' length, from 1. Rounding of
    single elements averages out in it. None where nothing is to move."""
    clipped: bool


class Movement(Record):
    """Start to end of training: what changed and what did not."""

    unmoved: tuple[str, ...]
    smallest_moved_share: float
    """Smallest share of changed elements of any trainable tensor; of an untied embedding, of the rows read."""
    smallest_moved_share_at: str
    frozen_tensors: int
    frozen_bytes: int
    frozen_changed: tuple[str, ...]
    """Frozen tensors, quantisation statistics and buffers whose bytes changed."""
    nonfinite: tuple[str, ...]
    idle: tuple[str, ...] = ()
    """Trainable tensors that need not move: no step gave them a gradient, in a model of which nothing else is known."""
    stuck_at_0: tuple[str, ...] = ()
    """Those of them that are matrices of zeros, and that each backward pass gives a gradient of 0."""
    without_rate: tuple[str, ...] = ()
    """Trainable tensors in groups of the optimizer whose rate was 0 in every step."""
    rate_scheduled: bool = False
    """Whether a schedule took the optimizer's rates from another value."""
    below_last_digit: tuple[str, ...] = ()
    """Trainable tensors in fp32, the last digit of most of whose weights exceeds the rate, or every tensor's change."""
    drawn: tuple[str, ...] = ()
    """Frozen matrices with the values that were drawn when their module was built, and that no file brought."""
    at_0: tuple[str, ...] = ()
    """Frozen matrices of zeros that no file brought."""
    adapted: tuple[str, ...] = ()
    """Matrices that learn beside low-rank factors of their own."""
    both_drawn: tuple[str, ...] = ()
    """Modules whose own low-rank factors are all drawn, where none is 0 before training."""
    uncalled: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Parts with modules of their own that no pass of the second step called, as a tower of pictures beside text, to
    those of their trained tensors that got no gradient."""
    misfrozen: tuple[str, ...] = ()
    """Modules and tensors that learn, and have an attribute which looks like requires_grad and is False."""
    added: tuple[int, ...] = ()
    """Tokens of the rows whose embeddings no file brought, and that do not learn."""
    upper_rest: str = ""
    """How many layers at the end of a list rest whole, where those at its beginning learn."""
    rates_fall: str = ""
    """Rates of layers that are the smaller the nearer a layer is to the output; empty for all others."""
    layers_rest: bool = False
    """Whether no matrix and no bias of the layers of a model of transformers learns, and no adapter of peft's."""


class CutOff(Record):
    """Trained tensors on which what a model of its own objective returns depends, and that no gradient reaches."""

    tensors: tuple[str, ...]
    """No step gave them one, the optimizer holds them, and nothing else changed them."""
    left_out: tuple[str, ...] = ()
    """Likewise, on which a loss depends that is computed and that is no part of what is differentiated."""
    hidden: tuple[str, ...] = ()
    """Items of the model's plain lists and dictionaries, and modules outside of it, that learn in no optimizer."""
    passes: int = 0
    """Passes of each early step, at least, whose results could be differentiated and are not, beside others."""
    in_steps: int = 0
    """The early steps in which passes were counted."""
    one_sided: int = 0
    """Passes of a step that do not learn, though others of the same module are scored against their rows, and learn."""
    replaced: tuple[str, ...] = ()
    """Modules without a gradient that are never called, beside one like them that is called in their place, too."""


class Continuity(Record):
    """What changed outside of the optimizer's steps, by samples of every parameter at every step."""

    moments: int
    """Comparisons: two a step, and one at the end."""
    trained: int
    frozen: int
    trained_changed: dict[str, int]
    """Trained tensors that changed outside of an optimizer step, with the step in or before which they first did."""
    frozen_changed: dict[str, int]
    """Frozen tensors that changed, likewise, also if they were right again at the end."""


class Trained(Record):
    """What learned, as it is after the last step: small enough to compare two attempts by."""

    norms: dict[str, float]
    scaler: str
    """State of fp16's gradient scaler as JSON: its scale and how long that has held; {} in another precision."""


class AdapterEffect(Record):
    """After training: logits with adapters on and off."""

    difference: float
    """Largest absolute difference over the largest logit."""
    enlarged_difference: float | None = None
    """The same with every B 4096 times as large, where the logits do not differ: what is smaller than a logit's last
    place is there all the same. None elsewhere."""


class CallOrder(Record):
    """What was called in one step and after it, until the next one began, in its order."""

    step: int
    calls: tuple[str, ...]
    """forward, forward in eval mode, evaluate (a forward without gradients), backward, scale and unscale (of fp16's
    gradient scaler), clip, accumulate (a library says that more passes come before the step that follows), step, idle
    step (without a gradient), skip (by the scaler), step of another optimizer, used step of another optimizer (with
    gradients of its step before, and others on top), schedule, clear (of the gradients), keep (a clear of gradients
    that the optimizer's state holds), edit (of them, by whatever else), move (of the weights, by whatever else than the
    optimizer), unrestored move (which the optimizer's step still finds)."""
    clip_scale: float | None = None
    """The most that a clip left of the gradients' norm, from 0 to 1; None where none was clipped to a limit."""


class LayerCalls(Record):
    """Decoder-layer forwards during one training window."""

    layers: int
    micro_batches: int
    calls: int
    """layers x micro_batches, twice that with gradient checkpointing."""
    recomputed: int
    """How many of the calls were made within a backward pass."""
    attention_kernels: tuple[str, ...]
    """What the first layer's attention ran: "sdpa:" and its kernel, another library's operator, or "eager"."""
    hidden_dtypes: tuple[str, ...]
    """Dtypes of what the decoder layers were given: a single promoted one doubles the memory of all that follow."""
    product_dtypes: tuple[str, ...]
    """Dtypes of what the layers' linears returned, adapters included: those in which the products were taken."""
    adapter_dtypes: tuple[str, ...]
    """Dtypes of what the adapters' first factors returned; empty without adapters."""
    head_tokens: int
    """The most tokens, padding included, whose logits were computed at one time."""
    cached_calls: int
    """How many of the layers' forwards were given a key-value cache to fill."""
    attention_rows: int = 0
    """Rows whose attention in the first layer was computed again by other code, each alone and unpadded."""
    attention_error: float = math.nan
    """The largest relative error among them; NaN where there was none."""
