"""Set-up: written once, before the first step."""

from dataclasses import field
from typing import Any

from tunecheck.core.frozen import Record


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
    versions: dict[str, str]
    cuda: dict[str, Any] | None = None
    """torch's own view of the card: name, UUID, compute capability, total bytes, bf16."""
    vram_cap_bytes: int | None = None
    """What torch's allocator was really limited to; None for the whole card, and on the CPU."""
    declared_optimizer: str
    """Class of the optimizer that the trainer declares (tunecheck.config.trainers)."""

    @property
    def rounds_products(self) -> bool:
        """Return whether products of fp32 matrices may lose bits, as a script allows: TF32 on a card, bf16 on a CPU."""
        return bool(self.numerics.get("rounds_products", False))

    @property
    def exact(self) -> bool:
        return self.precision == "fp32" and not self.rounds_products


class Weights(Record):
    """Where the model came from."""

    model: str
    source: str
    """local, hub, package or random."""
    identifier: str
    revision: str
    sha256: str
    """Digest of the safetensors file that was loaded; of the list of the shards' digests where there are several."""
    pretrained: bool
    notes: tuple[str, ...] = ()
    """What the sources before this one answered."""
    repairs: tuple[str, ...] = ()
    """When and why a damaged copy in the cache was replaced by a fresh one."""


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
    """The hub's answer where its rows were requested and these are used instead."""
    notes: tuple[str, ...] = ()
    """Which rows of the hub's file were left out, and how many."""
    repairs: tuple[str, ...] = ()


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
    held_parameters: int = 0
    total_parameters: int
    """Packed 4-bit weights count with their unpacked number; a tied tensor counts once."""
    expected_parameters: int | None = None
    """What the strategy trains, by arithmetic from the configuration's shapes; None where those are not known here."""
    weight_decays: dict[str, int]
    undecayed: tuple[str, ...] = ()
    adam_settings: dict[str, int]
    """Tensors by beta1, beta2 and epsilon of their parameter group; "none" where it has none of these."""
    optimizer_switches: dict[str, int] = field(default_factory=dict)
    """Tensors by what is switched on in their parameter group that changes the update: amsgrad, maximize, nesterov."""


class LearntBeside(Record):
    """Tensors of the optimizer that are not the model's and have a gradient in the first step, as those of a loss."""

    tensors: int


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
    requantized: int
    """Linears of the smallest shape, quantised once more from the file."""
    requantized_differing: tuple[str, ...]
    kernel_error: float
    """Largest relative error of a quantised linear's output, and of the gradient that it hands down, against products
    with its weight dequantised by other code."""
    kernel_error_at: str
    """Product or gradient, module, rows."""
    unpacked_kept: tuple[str, ...] = ()
    """Of one linear of each shape, those that keep a tensor as large as their unpacked weight for the backward pass."""


NEW_TOKENS_FROZEN = "frozen, and rows have tokens that the base has never seen"
"""Why a resized embedding differs from the file's for ever."""


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
    buffers_cast: bool = False
    """Whether these buffers are of 16 bit."""


class WeightsDrawn(Record):
    """A model of transformers, the trained one or a part, that holds no values of its configuration's weight file."""

    model: str
    """Its class."""
    folder: str
    """Name of what the configuration was read from, a folder or one of the hub's."""
    tensors: int
    """Matrices that both have, of equal shapes."""


class AdapterStart(Record):
    """With untouched adapters the adapted model must be the base; with a random B it must follow its formula.

    That is W + s B A with s = alpha/r, alpha/sqrt(r) with rsLoRA; with DoRA m/||W + s B A|| (W + s B A), m random too.
    """

    start_difference: float
    """Largest difference of an adapted linear's output from its base's, over the base's largest; in train mode."""
    modules: int
    algebra_error: float
    """Largest relative error of what an adapted linear adds, and of the adapter's gradients, against the formula."""
    algebra_error_at: str
    """The module, and which gradient where it is not the output."""
    least_algebra_error: float = 0.0
    """Smallest such error of an output: above rounding where no module follows the formula."""
    logit_change: float
    """Relative change of the model's logits with a random B: 0 when the adapters are not applied."""
    a_sizes: dict[str, float]
    """Smallest and largest spread of an untouched A over 1 / sqrt(3 x inputs), that of LoRA's uniform start."""
    a_repeated: tuple[str, ...]
    """A that hold the same numbers as another one."""
    a_dependent: tuple[str, ...]
    """A whose rows depend on each other, so that its rank is smaller than configured, permanently."""
    seed: int
    """What torch's generator was last seeded with, by which A was drawn."""
    base_difference: float
    """Relative difference of logits with adapters from those without, before training, nothing dropped."""


class AdapterDropout(Record):
    """One forward pass in train mode: what A is given beside what its adapted linear is."""

    pairs: int
    """Pairs of neighbouring elements that were looked at."""
    dropped: int
    """Elements that were 0."""
    alone: int
    """Those whose neighbour was not: none where elements do not fall each by itself."""
    odd: int
    """Pairs with an element that is neither 0 nor the given one divided by one less the configured share."""
    neighbours: tuple[int, int]
    """Pairs at the same place of two tokens side by side: how many, and in how many of them the same elements fell."""
    siblings: tuple[int, int]
    """The same for two adapters, one called after the other."""
    base_untouched: bool


class ForwardPaths(Record):
    """Properties of one forward pass."""

    repeat_difference: float
    """Two forwards of the same rows in train mode without dropout: largest absolute logit difference."""
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


class ForwardReference(Record):
    """One forward pass against the architecture's formulas: what lies between its linears, computed by other code."""

    has_formulas: bool
    """False for an architecture whose formulas are not known here: then nothing was compared."""
    relations: int
    error: float
    """Largest relative error of a relation; infinite when a module was not called."""
    worst: str
    gain_error: float | None = None
    """Largest error of a norm's gain, rounding of its elements apart; taken in 16 bit alone."""
    gain_error_at: str = ""
    fp32_error: float | None = None
    """Largest relative error of a relation that is computed in fp32, of the first layer and the head, or that is exact
    in 16 bit; taken in a 16-bit run alone."""
    fp32_error_at: str = ""
    product_gain_error: float | None = None
    """How far the product of a linear is off along that of its weight; None where no linear was looked at."""
    product_gain_error_at: str = ""
    extreme_error: float | None = None
    """Largest relative error of sdpa by itself, at lengths and scores that may never come; where the model uses it."""
    extreme_error_at: str = ""
