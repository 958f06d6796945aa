"""The records a trace is made of: what was measured, never what it means. The checks decide that.

Plain frozen data, no tensors. A new probe adds its record here; `RECORDS` is derived from the subclasses.
Names carry units; `_error` is a relative error unless the name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Base of everything that a trace may hold."""


# The run and its attempts: written by the runner.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader(Record):
    """The first line of a trace: what was asked for, and where."""

    schema: int
    tunecheck_version: str
    started_at: str
    """UTC, ISO 8601."""
    run: dict[str, Any]
    """The resolved configuration, checks and limits included."""
    fingerprint: str
    """Digest of the configuration less its checks and deadline: equal fingerprints train the same thing."""
    environment: dict[str, Any]
    """Hardware, versions and the project's git commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStart(Record):
    """A child process begins."""

    purpose: str
    """train, repeat (same again in a fresh process), resume (from the checkpoint of the middle), compare (a variant
    for a few steps), rung (the same for a rung of the ladder), reference (a run that begins on the CPU, after a
    fallback to it), read back (what was saved, without the trainer) or merge (what was saved, into the base)."""
    device: str
    reason: str
    """Why this attempt was made: "asked for", or what made the one before it fail."""
    changes: dict[str, Any]
    """Settings in which this attempt differs from the run as configured; empty for the first one."""
    card: str | None = None
    """UUID of the GPU or MIG instance that it has to itself; None on the CPU."""
    vram_cap_bytes: int | None = None
    """--vram-cap: how much of the card gate and allocator were allowed; None for all of it, and on the CPU."""
    rung: str = ""
    """Of the run's ladder, see suite.runner.ladder; empty for the run as it was asked for."""
    arithmetic: tuple[str, ...] = ()
    """What the rung computes otherwise than the run asked; empty when only the order of sums may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd(Record):
    """A child process is gone."""

    outcome: str
    """finished, out_of_memory, failed, crashed, hung, interrupted, unavailable (weights or data) or misconfigured."""
    detail: str
    """The error in a sentence, with the signal's name after a crash."""
    seconds: float
    log_tail: str = ""
    """The last lines of the child's output when it did not finish."""


# Set-up: written once, before the first step.


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup(Record):
    """What the child resolved from the run's `auto` settings, and the numeric modes it runs under."""

    device: str
    device_name: str
    precision: str
    """bf16, fp16 or fp32: what the arithmetic really uses."""
    threads: int
    attention: str
    optimizer: str
    workarounds: tuple[str, ...]
    """Library bugs that were worked around, each with the versions it is for."""
    numerics: dict[str, Any]
    """TF32 flags, determinism flag, and the like."""
    versions: dict[str, str]
    cuda: dict[str, Any] | None = None
    """torch's own view of the card: name, UUID, compute capability, total bytes, bf16."""
    vram_cap_bytes: int | None = None
    """What torch's allocator was really limited to; None for the whole card, and on the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights(Record):
    """Where the model came from."""

    model: str
    source: str
    """local, hub, package or random."""
    identifier: str
    revision: str
    sha256: str
    """Digest of the safetensors file that was loaded."""
    pretrained: bool
    notes: tuple[str, ...] = ()
    """What the sources before this one answered."""
    repairs: tuple[str, ...] = ()
    """When and why a damaged copy in the cache was replaced by a fresh one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset(Record):
    """Where the rows came from."""

    name: str
    source: str
    """hub, shipped (with the project) or local (files of the user's)."""
    identifier: str
    """The hub's id and file, else the two files."""
    revision: str
    """The hub's commit; empty for files."""
    file_sha256: str
    """Digest of the hub's file; empty for files."""
    sha256: str
    """Digest of the two splits as trained: that of the training file and the held-out file in a row."""
    rows: int
    heldout_rows: int
    instead_of: str = ""
    """What the hub answered where its rows were asked for and these are used instead."""
    notes: tuple[str, ...] = ()
    """Which rows of the hub's file were left out, and how many."""
    repairs: tuple[str, ...] = ()
    """When and why a damaged copy in the cache was replaced by a fresh one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning(Record):
    """The session as it was built, before anything was computed with it."""

    tensors: int
    digest: str
    """Digest of every parameter and buffer by name, quantisation statistics included, and of the random state."""
    optimizer_states: int
    """Tensors for which the optimizer has a state already: 0 in a fresh one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Census(Record):
    """Which tensors exist, which are trained, which the optimizer holds."""

    when: str
    """start, after_evaluation or end."""
    expected_trainable: tuple[str, ...]
    """Enumerated from the configuration and the names in the weight file, not from the model."""
    trainable: tuple[str, ...]
    optimized: tuple[str, ...]
    """One name for every tensor in the parameter groups, matched by identity; one that is not the model's is "?"."""
    devices: dict[str, int]
    """Tensors (parameters, buffers, optimizer state) by device."""
    trainable_dtypes: dict[str, int]
    frozen_dtypes: dict[str, int]
    """Tensors by dtype; packed 4-bit weights count as uint8."""
    trainable_parameters: int
    total_parameters: int
    """Packed 4-bit weights count with their unpacked number; a tied tensor counts once."""
    expected_parameters: int | None = None
    """What the strategy trains, by arithmetic from the configuration's shapes; None for an architecture whose shapes
    are not known here, and in traces of older versions."""
    weight_decays: dict[str, int]
    """Tensors by the weight decay of their parameter group."""
    adam_settings: dict[str, int]
    """Tensors by beta1, beta2 and epsilon of their parameter group; "none" where it has none of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization(Record):
    """The 4-bit linears as they are, beside the set that the configuration asks for."""

    expected_modules: tuple[str, ...]
    quantized_modules: tuple[str, ...]
    quant_types: dict[str, int]
    block_sizes: dict[str, int]
    double_quant: dict[str, int]
    compute_dtypes: dict[str, int]
    packed_bytes: int
    """Packed weights with both levels of statistics."""
    expected_bytes: int
    """The same by arithmetic from shapes and block size."""
    kernel_error: float
    """Largest relative error of a quantised linear's output against its weight dequantised by other code."""
    kernel_error_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFidelity(Record):
    """The loaded base against the weight file, tensor by tensor."""

    tensors: int
    differing: tuple[str, ...]
    """Unquantised tensors that are not the file's, cast to their dtype; tensors that the file lacks."""
    weight_errors: dict[str, float]
    """Relative error of the quantised tensors, dequantised by our own code: smallest, median and largest."""
    worst_weight: str
    buffers_differing: tuple[str, ...]
    """Buffers that are not their closed form (rotary inverse frequencies)."""
    tied: bool
    tied_expected: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterStart(Record):
    """With untouched adapters the adapted model must be the base; with a random B it must follow its formula.

    That is W + s B A with s = alpha/r, alpha/sqrt(r) with rsLoRA; with DoRA m/||W + s B A|| (W + s B A), m random too.
    """

    start_difference: float
    """Largest difference of an adapted linear's output from its base's, over the base's largest, before training."""
    modules: int
    algebra_error: float
    """Largest relative error of what an adapted linear adds against its formula, computed from the run's numbers."""
    algebra_error_at: str
    logit_change: float
    """Relative change of the model's logits with a random B: 0 when the adapters are not applied."""
    a_sizes: dict[str, float]
    """Smallest and largest spread of an untouched A over 1 / sqrt(3 x inputs), that of LoRA's uniform start."""
    a_repeated: tuple[str, ...]
    """A that hold the same numbers as another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPaths(Record):
    """Properties of one forward pass."""

    repeat_difference: float
    """Two equal forwards in train mode without dropout: largest absolute logit difference."""
    future_token_difference: float
    """Change of earlier logits when only a later token changes, over the largest logit."""
    padding_difference: float
    """Change of a row's logits when it is padded, over the largest logit."""
    other_row_difference: float
    """Change of a row's logits when another row of the batch changes, over the largest logit."""
    matmul_error: float
    """A known-answer fp32 product on this device: relative error against float64. TF32 shows as 1e-4 or more."""
    attention: str
    """The attention implementation that the model's layers will really call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardReference(Record):
    """One forward pass against the architecture's formulas: what lies between its linears, computed by other code."""

    has_formulas: bool
    """False for an architecture whose formulas are not known here: then nothing was compared."""
    relations: int
    error: float
    """Largest relative error of a relation; infinite when a module was not called."""
    worst: str
    """That relation."""


# Data.


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSplit(Record):
    """The two splits, compared."""

    train_rows: int
    heldout_rows: int
    shared: tuple[str, ...]
    """Instructions of held-out rows that training contains, by text or by tokens."""
    largest_token_id: int
    embedding_rows: int
    dataset: str
    dataset_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(Record):
    """The micro-batches that the model really received for one optimizer step, audited against the data set."""

    step: int
    digests: tuple[str, ...]
    """One digest a micro-batch, over token ids and labels."""
    rows: tuple[str, ...]
    """Identity of each row in the data set ("train:17", "canary", or "?" when it is none of them)."""
    expected_rows: tuple[str, ...]
    """The rows that the seed and the step prescribe."""
    supervised_tokens: int
    expected_supervised_tokens: int
    random_state: str
    """Digest of the random state that the step's dropout will draw from."""
    problems: dict[str, str]
    """Kind of problem to its first example: double BOS, answer lost, padding supervised, end token missing, ..."""


# Training.


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients(Record):
    """Gradients of one step after backward, unscaled and before clipping."""

    step: int
    zero: tuple[str, ...]
    """Trainable tensors whose gradient is missing or exactly zero."""
    nonfinite: tuple[str, ...]
    frozen_with_gradient: tuple[str, ...]
    norms: dict[str, float]
    """Gradient norm by group: lora_A, lora_B, lora_magnitude_vector, other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle(Record):
    """One accumulation window computed again by other code: every row alone and unpadded, loss summed, one backward."""

    step: int
    after_evaluation: bool
    loss: float
    gradient_error: float
    """Norm of the difference of both gradients over the norm of the oracle's."""
    worst_gradient_error: float
    """Largest such error of a single tensor whose gradient is not negligible."""
    worst_gradient: str
    norm: float
    """Norm of the oracle's gradient."""
    directional_error: float | None = None
    """Slope of the loss along the gradient, from two losses to either side, against the slope that the gradient
    promises: relative. None where it was not asked for."""
    split: str
    """How the trainer split the window, for the reader: "2 x 2 rows"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGradients(Record):
    """Every decoder layer's backward pass alone, after training, against differences of its own forward."""

    layers: int
    error: float
    """Largest relative error of a layer's slope along its gradient."""
    worst: int
    """That layer's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement(Record):
    """Start to end of training: what changed and what did not."""

    unmoved: tuple[str, ...]
    """Trainable tensors equal to their start."""
    smallest_moved_share: float
    """Smallest share of changed elements of any trainable tensor; of an untied embedding, of the rows read."""
    smallest_moved_share_at: str
    frozen_tensors: int
    frozen_bytes: int
    frozen_changed: tuple[str, ...]
    """Frozen tensors, quantisation statistics and buffers whose bytes changed."""
    nonfinite: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained(Record):
    """What learned, as it is after the last step: small enough to compare two attempts by."""

    norms: dict[str, float]
    """Norm of every trained tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterEffect(Record):
    """After training: logits with adapters on and off."""

    difference: float
    """Largest absolute difference over the largest logit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCalls(Record):
    """Decoder-layer forwards during one training window."""

    layers: int
    micro_batches: int
    calls: int
    """layers x micro_batches, twice that with gradient checkpointing."""
    attention_kernels: tuple[str, ...]
    """What the first layer's attention ran: "sdpa:" and its kernel, another library's operator, or "eager"."""
    hidden_dtypes: tuple[str, ...]
    """Dtypes of what the decoder layers were given: a single promoted one doubles the memory of all that follow."""


# Evaluation, generation, checkpoint.


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(Record):
    """Token-weighted evaluation as the trainer reported it."""

    step: int
    """Optimizer steps done before it."""
    split: str
    """probe (rows of the training set, fixed) or heldout."""
    loss: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationAudit(Record):
    """The evaluation, looked at from outside."""

    split: str
    reported_loss: float
    repeated_loss: float
    """The same evaluation again, right away: equal to the last bit."""
    oracle_loss: float
    """Sum of negative log-likelihoods over sum of tokens, every row alone and unpadded, by other code."""
    oracle_tokens: int
    reported_tokens: int
    training_modules_during: int
    """Modules that were in train mode while evaluation ran: 0."""
    mode_restored: bool
    """Every module is in the mode it was in before."""
    built_graph: bool
    """True when evaluation ran with gradients enabled: it would hold every activation."""
    kept_tensors: int
    """Tensors alive after one evaluation more than before it: 0."""
    weights_changed: bool
    """Whether a trained tensor has other bytes after an evaluation than before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation(Record):
    """Greedy continuations of fixed prompts."""

    when: str
    """start or end."""
    prompt: str
    expected: str
    """The answer that must come back exactly; empty when there is none."""
    text: str
    ended: bool
    """True when the end token was generated."""
    greedy_agreement: float
    """Share of the generated tokens that are the arg max of one plain forward over prompt and answer."""
    logit_difference: float
    """Largest difference of the scores it was chosen by, after generate's processors, and that forward's logits, over
    the largest logit."""
    mean_logprob: float
    """Mean log-probability of the generated tokens under that forward."""
    tokens: int | None = None
    """Generated tokens, an end token among them; None in traces of older versions, as are the next two."""
    most_frequent_share: float | None = None
    """Share of the most frequent token among them."""
    readable_share: float | None = None
    """Characters of the text that are neither the replacement character of a broken one nor control characters nor
    unassigned, as a share; 1 for no text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrip(Record):
    """The saved adapter, read back from disk into a fresh one."""

    file_bytes: int
    tensors: int
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    differing: tuple[str, ...]
    """Tensors whose bytes differ from the trained ones."""
    zero_b: tuple[str, ...]
    """lora_B tensors that are all zero in the file."""
    logit_difference: float
    """Largest absolute difference over the largest logit, trained against reloaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBack(Record):
    """What was trained, read by transformers and peft alone in a fresh process."""

    files: tuple[str, ...]
    logit_difference: float
    """Largest absolute difference over the largest logit, trained against read back."""
    adapter_effect: float | None
    """The same, trained against read back with the adapters off; None where all weights were trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged(Record):
    """The saved adapter, merged by the trainer in a fresh process into the weights that it was trained beside."""

    logit_difference: float
    """Largest absolute difference over the largest logit, trained against merged."""
    adapter_effect: float
    """The same, trained against the base as it was loaded."""
    adapters_left: tuple[str, ...]
    """Modules of the merged model that are still peft's."""
    packed_left: tuple[str, ...]
    """Tensors of the merged model that are still 4-bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Record):
    """A checkpoint was read in this attempt."""

    step: int
    optimizer_steps: int
    """The optimizer's own count after loading."""


# Resources.


TRAINING_PHASES = ("first step", "steady")
"""The phases whose memory is that of the training itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase(Record):
    """One stretch of an attempt. The allocator's figures are None on the CPU."""

    name: str
    """load, evaluation (with the probes of start and end), first step, steady (the other steps) or save."""
    seconds: float
    started_at: float | None = None
    """On the machine's monotonic clock, which device samples share."""
    peak_allocated_bytes: int | None = None
    """What live tensors took; in first step and steady without what the probes took in between."""
    peak_requested_bytes: int | None = None
    """The same before the allocator rounds up."""
    peak_reserved_bytes: int | None = None
    """What the allocator held of the card, the probes' share included: it gives little back."""
    probes_peak_allocated_bytes: int | None = None
    """Peak while probes worked in between; None where none did or they are not told apart."""
    allocation_retries: int | None = None
    """Allocations that succeeded only after the cache was given back."""
    out_of_memory_count: int | None = None
    process_bytes: int | None = None
    """Resident set of the process; what it holds of a card is in the device samples."""
    others_busy_share: float | None = None
    """Share of the machine's processor time that went to other processes, or was stolen from a virtual machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTensors(Record):
    """Tensors alive in the process, at the same point of a step."""

    step: int
    tensors: int
    bytes: int
    hooks: int = 0
    """Hooks on the model's modules and on its trainable tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(Record):
    """What is left after the session was torn down."""

    tensors: int
    bytes: int
    """Live tensor bytes on the run's device, less those before the model was loaded."""
    session_bytes: int
    """Live tensor bytes while the session stood: what there was to release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFailed(Record):
    """A probe raised: its evidence is missing or in part, and the checks that need it are unjudged."""

    probe: str
    moment: str
    error: str
    kinds: tuple[str, ...] = ()
    """Names of the records that it would have written."""


# The card, seen from another process: written by the meter.


@dataclass(frozen=True, slots=True, kw_only=True)
class CardProcess:
    """A process that computes on the card."""

    pid: int
    """As the driver knows it: inside a container it may be the host's number."""
    name: str | None
    used_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample(Record):
    """The card over a short time. What it does not tell is None: neither good nor bad."""

    at: float
    """Beginning, on the machine's monotonic clock."""
    seconds: float
    readings: int
    used_bytes: int | None
    """Largest, of the whole card."""
    process_bytes: int | None
    """Largest, of the training process; None also where the driver hides process ids."""
    process_seen: bool
    """Whether the driver listed the training process under its own id."""
    sm_clock_mhz: float | None
    """Mean."""
    temperature_celsius: float | None
    """Largest."""
    power_watts: float | None
    """Largest."""
    clock_reasons: dict[str, int] | None
    """Why the clock was below its highest, and in how many of the readings."""
    others: tuple[CardProcess, ...]
    """Processes seen besides the training one, each with its largest memory."""
    xids: tuple[int, ...] = ()
    """The driver's error numbers, as they came."""
    events: tuple[str, ...] = ()
    """Other critical events of the driver, by NVML's names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health(Record):
    """The card's counters before or after an attempt. What it does not tell is None: neither good nor bad."""

    when: str
    """before or after."""
    fault: str = ""
    """That the card is lost or must be reset, in the words for NVML's errors 15 and 16; else empty."""
    uncorrected_ecc: int | None = None
    """Memory errors since the driver was loaded that could not be corrected."""
    corrected_ecc: int | None = None
    remapped_rows_corrected: int | None = None
    """Rows of memory replaced after correctable errors."""
    remapped_rows_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_pages_pending: bool | None = None
    recovery_action: int | None = None
    """NVML's field 230: 0 none, 1 reset, 2 reboot, 3 drain, 4 drain and reset; newer drivers know more."""
    temperature_celsius: float | None = None
    power_limit_watts: float | None = None
    default_power_limit_watts: float | None = None
    clock_reasons: tuple[str, ...] | None = None
    energy_joules: float | None = None
    """Since the driver was loaded."""
    pcie_replays: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry(Record):
    """How completely the card was watched during an attempt, and what was on it before."""

    uuid: str
    """The card that was watched; empty when it could not be told which."""
    complete: bool
    """False when the sampling process could not start, died or hung: then silence is no sign of health."""
    problem: str = ""
    """What happened to the sampling process."""
    readings: int = 0
    process_id: int | None = None
    """The training process."""
    memory_source: str = ""
    """process: NVML's figure of the training process; device: the card's use less what it was before, since the driver
    hides process ids; empty when neither is told."""
    used_bytes_before: int | None = None
    used_bytes_after: int | None = None
    """Of the whole card, when the training process was gone."""
    processes_before: tuple[CardProcess, ...] = ()
    processes_after: tuple[CardProcess, ...] = ()


RECORDS: dict[str, type[Record]] = {kind.__name__: kind for kind in Record.__subclasses__()}
"""Every kind of record by its name in the file."""
