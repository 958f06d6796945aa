"""The loaded base against the weight file, tensor by tensor; its 4-bit linears against our own dequantisation."""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from statistics import median
from typing import Any

import torch

from tunecheck.core.evidence import NEW_TOKENS_FROZEN, BaseFidelity, Quantization
from tunecheck.core.premises import Premise
from tunecheck.models.description import Architecture
from tunecheck.models.layer_names import base_of
from tunecheck.models.shapes import is_layer_linear, packed_bytes
from tunecheck.probes.reference.backward import gradients_by
from tunecheck.probes.reference.four_bit import is_packed, matrix, quantised, scales, some_rows, statistics, values
from tunecheck.probes.reference.measures import counted, dtype_name, relative_error, worst
from tunecheck.probes.reference.vocabulary import vocabulary_size
from tunecheck.probes.reference.weight_file import WeightFile, file_name, layer_number
from tunecheck.training.data import Tokens
from tunecheck.training.events import Probe
from tunecheck.training.load import DTYPES
from tunecheck.training.restore import adapted_layers
from tunecheck.training.session import Session
from tunecheck.training.tensors import whole

ROWS_SOUGHT = 24
"""Rows of a tensor that are looked for under the file's other names."""

SHORT = (1, 17)
"""Tokens of a forward pass of generation: one with a cache, a short prompt without."""
VALUES_ON_THE_FENCE, SCALES_ON_THE_FENCE = 5e-3, 0.05
"""Shares that may be rounded to the other side where two are as near: up to 0.001 and 0.008 of random bf16 weights."""
SCALE_ROUNDING = 1e-4
"""Of a scale; the next one of the 8-bit map is 1e-3 away and more."""


class FidelityProbe(Probe[BaseFidelity]):
    """Compares every base tensor with the file, as it reads it itself, once, before training."""

    def start(self, session: Session) -> None:
        weights = WeightFile(session.folder)
        model = base_of(session.model)
        parameters, adapters = dict(model.named_parameters()), _adapters(model)
        # tokens that learn beside an embedding are some of its rows
        trained = [name for name, parameter in parameters.items() if parameter.requires_grad]
        learning = {file_name(re.sub(r"trainable_tokens_delta\..*", "weight", name)) for name in trained}
        differing: list[str] = []
        errors: dict[str, float] = {}
        inside: dict[str, list[Any]] = {}
        untied = _untied_head(model)
        unclaimed = {*weights.names} - {*map(file_name, parameters)}
        compared = [(file_name(name), p) for name, p in parameters.items() if id(p) not in adapters]
        for name, parameter in compared:
            source = name if name in weights else untied.get(name, name)
            if source not in weights and (within := _wrapped(name, unclaimed)) is not None:
                inside.setdefault(within, []).append(parameter)
            elif name not in weights and _stands_elsewhere(name, parameter, weights, unclaimed):
                continue
            elif source not in weights:
                differing.append(f"{name} (not in the file)")
            elif is_packed(parameter):
                errors[name] = _quantization_error(parameter, weights, source)
            elif (why := _difference(session, parameter, weights.tensor(source), name in learning)) is not None:
                differing.append(f"{name}{why}")
        for name, held in inside.items():
            if not any(is_packed(p) or _difference(session, p, weights.tensor(name), False) is None for p in held):
                differing.append(f"{name} (in no part of the module that stands for it)")
        # of a copy that modules_to_save trains the original
        pair = (getattr(m, "original_module", m) for m in (model.get_output_embeddings(), model.get_input_embeddings()))
        head, embedding = (None if part is None else whole(part.weight).data_ptr() for part in pair)
        sizes, (at, largest), architecture = list(errors.values()), worst(errors), session.run.model.architecture
        wrong = {name: session.model.get_buffer(name) for name in wrong_frequencies(session.model, architecture)}
        seen = BaseFidelity(
            tensors=len(compared),
            differing=tuple(differing),
            # a NaN anywhere is the largest
            weight_errors={"smallest": min(sizes), "median": median(sizes), "largest": largest} if sizes else {},
            worst_weight=at,
            buffers_differing=tuple(map(file_name, wrong)),
            buffers_cast=bool(wrong) and all(buffer.element_size() == 2 for buffer in wrong.values()),
            tied=head == embedding,
            tied_expected=architecture.tie_word_embeddings,
        )
        self.emit(seen)


def _untied_head(model: Any) -> dict[str, str]:
    """Return the head's name to the embedding's: of a tied pair a file has one, and a script may part them."""
    pair = model.get_output_embeddings(), model.get_input_embeddings()
    names = {id(module): name for name, module in model.named_modules()}
    head, embedding = (file_name(f"{names[id(part)]}.weight") if id(part) in names else "" for part in pair)
    return {head: embedding} if head and embedding else {}


def _wrapped(name: str, unclaimed: Collection[str]) -> str | None:
    """Return the file's tensor whose module the script has put another around, as adapters by hand do; None without."""
    parts = name.split(".")
    above = (f"{'.'.join(parts[:end])}.weight" for end in range(len(parts) - 1, 0, -1))
    return next((held for held in above if held in unclaimed), None)


def _stands_elsewhere(name: str, parameter: Any, weights: WeightFile, unclaimed: Iterable[str]) -> bool:
    """Return whether the file has the tensor's rows under other names of its layer, as Mixtral's experts are joined."""
    held = whole(parameter).detach().cpu()
    names = sorted(other for other in unclaimed if layer_number(other) == layer_number(name))
    ways = (held, held.mT) if held.dim() > 1 else (held.reshape(1, -1),)
    return any(_has_rows(turned.reshape(-1, turned.shape[-1]), weights, names) for turned in ways)


def _has_rows(matrix: torch.Tensor, weights: WeightFile, names: Sequence[str]) -> bool:
    """Return whether a sample of the rows lies in the tensors of these names; further rows are new ones."""
    names = [name for name in names if weights.shape(name)[-1:] == matrix.shape[-1:]]
    rows_held = min(len(matrix), sum(math.prod(weights.shape(name)[:-1]) for name in names))
    sought = [*matrix[torch.linspace(0, rows_held - 1, min(ROWS_SOUGHT, rows_held)).long()]]
    for name in names:
        if sought:
            rows = weights.tensor(name).to(matrix.dtype).reshape(-1, matrix.shape[-1])
            # the first number tells which rows to compare whole
            alike = [rows[rows[:, 0] == row[0]] for row in sought]
            sought = [row for row, others in zip(sought, alike, strict=True) if not (others == row).all(-1).any()]
    return bool(names) and not sought


def _adapters(model: Any) -> set[int]:
    """Return the identities of the tensors that peft's layers of any kind added."""
    layers = adapted_layers(model).values()
    named = [(layer, name) for layer in layers for name in (*layer.adapter_layer_names, *layer.other_param_names)]
    held: list[Any] = [getattr(layer, name, None) for layer, name in named]
    return {id(parameter) for part in held if hasattr(part, "parameters") for parameter in part.parameters()}


def _difference(session: Session, parameter: Any, wanted: torch.Tensor, learns: bool) -> str | None:
    """Return None where the tensor is the file's, else what explains the difference, "" where nothing does.

    A vocabulary may have been resized: its further rows, which no file has, are to learn if they are read. Those that
    fill it up to a multiple of 64 are not read.
    """
    held, wanted = whole(parameter).detach().cpu(), wanted.to(parameter.dtype)
    rows, vocabulary = len(wanted), session.run.model.architecture.vocab_size
    if held.shape[1:] == wanted.shape[1:] and len(held) == vocabulary != rows:
        first = min(rows, vocabulary_size(session.folder))
        if not learns and any(token >= first for row in session.batches.train for token in row.input_ids):
            return f" ({NEW_TOKENS_FROZEN}: from {first} on)"
        held, wanted = held[:rows], wanted[:vocabulary]
    # a script may load weights in 16 bit and raise them to fp32, as prepare_model_for_kbit_training does
    read = (held.dtype, torch.bfloat16, torch.float16)[: 1 if session.run.holds(Premise.DTYPES_DECLARED) else 3]
    return None if any(torch.equal(wanted.to(kind).to(held.dtype), held) for kind in read) else ""


def _quantization_error(parameter: Any, weights: WeightFile, name: str) -> float:
    """Relative error of some rows, dequantised by our own code, against the file's."""
    rows, columns = weights.shape(name)
    if tuple(parameter.quant_state.shape) != (rows, columns):
        return float("nan")
    taken, got = some_rows(parameter)
    return relative_error(got.cpu(), torch.cat([weights.rows(name, part.start, part.stop).float() for part in taken]))


MODEL_TYPES = frozenset(
    {*("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2", "olmo", "olmo2")}
)
"""Architectures that turn the whole of each head by one table, in all layers alike."""
TOLERANCE = 1e-3
"""Relative: fp32 frequencies of other implementations differ by 1e-6, those of another base by more."""


def wrong_frequencies(model: Any, architecture: Architecture) -> Iterator[str]:
    """Yield the model's buffers of inverse frequencies that are not their closed form, where that is known."""
    if (wanted := inverse_frequencies(architecture)) is None:
        return
    for name, held in ((n, buffer.float().cpu()) for n, buffer in model.named_buffers() if n.endswith("inv_freq")):
        if held.shape != wanted.shape or not torch.allclose(held, wanted, rtol=TOLERANCE, atol=0):
            yield name


def inverse_frequencies(architecture: Architecture) -> torch.Tensor | None:
    """Return the frequencies [head_dim / 2] in radians a position, in fp32; None where their form is not known.

    theta^(-2i/d) by arXiv 2104.09864, positions divided by a factor by 2306.15595, and Llama 3.1's reference code.
    """
    if architecture.model_type not in MODEL_TYPES:
        return None
    further = architecture.model_extra or {}
    head_dim = architecture.head_width
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    scaling = further.get("rope_scaling") or further.get("rope_parameters") or {}
    plain: torch.Tensor = scaling.get("rope_theta", architecture.rope_theta) ** -exponents
    match scaling.get("rope_type", scaling.get("type", "default")):
        case "default":
            return plain.float()
        case "linear":
            return (plain / float(scaling["factor"])).float()
        case "llama3":
            # those that turn less than `low_freq_factor` times in the first context are divided, and blended up to high
            turns = scaling["original_max_position_embeddings"] * plain / (2 * math.pi)
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            kept: torch.Tensor = ((turns - low) / (high - low)).clamp(0, 1)
            return (kept * plain + (1 - kept) * plain / float(scaling["factor"])).float()
    return None


class QuantizationProbe(Probe[Quantization]):
    """Looks at every quantised linear once, before training."""

    def start(self, session: Session) -> None:
        if session.run.quantization is None:
            return
        weights, double_quant = WeightFile(session.folder), session.run.quantization.double_quant
        linears = [name for name in weights.names if is_layer_linear(name, weights.shape(name))]
        named = [(name, m) for name, m in session.model.named_modules() if is_packed(m._parameters.get("weight"))]
        modules = {file_name(f"{name}.weight").removesuffix(".weight"): module for name, module in named}
        sizes = [math.prod(weights.shape(f"{name}.weight")) for name in modules if f"{name}.weight" in weights]
        packed = [module.weight for module in modules.values()]
        held = [part for one in packed for part in (one, one.quant_state.code, *dict(statistics(one)).values())]
        at, error = _kernel_error(session, modules)
        again = _quantized_again(session, weights, modules)
        seen = Quantization(
            expected_modules=tuple(name.removesuffix(".weight") for name in linears),
            quantized_modules=tuple(sorted(modules)),
            quant_types=counted(weight.quant_state.quant_type for weight in packed),
            block_sizes=counted(weight.quant_state.blocksize for weight in packed),
            double_quant=counted(weight.quant_state.nested for weight in packed),
            compute_dtypes=counted(dtype_name(module.compute_dtype) for module in modules.values()),
            packed_bytes=sum(part.numel() * part.element_size() for part in held),
            expected_bytes=sum(packed_bytes(size, double_quant) for size in sizes),
            requantized=len(again),
            requantized_differing=tuple(name for name, same in again.items() if not same),
            kernel_error=error,
            kernel_error_at=at,
            unpacked_kept=tuple(name for name, m in _of_each_shape(modules) if _keeps_unpacked(session, m)),
        )
        self.emit(seen)


def _kernel_error(session: Session, modules: dict[str, Any]) -> tuple[str, float]:
    """Largest relative error over one module of each shape: of module(x) against x @ W.T + b, and its gradient."""
    generator, dtype, counts = torch.Generator().manual_seed(0), DTYPES[session.precision], token_counts(session)
    errors: dict[str, float] = {}
    for name, module in _of_each_shape(modules):
        rows, columns = module.weight.quant_state.shape
        weight = matrix(module.weight).to(dtype).double()
        bias = 0 if module.bias is None else module.bias.detach().double()
        for count in counts:
            x = torch.randn(count, columns, generator=generator).to(session.device, dtype)
            above = torch.randn(count, rows, generator=generator).to(session.device, dtype)
            wanted = {"product": x.double() @ weight.T + bias, "gradient": above.double() @ weight}
            with torch.enable_grad():
                got = module(x.requires_grad_(True))
            for (what, own), value in zip(wanted.items(), (got, *gradients_by(got, [x], above)), strict=True):
                errors[f"{what} of {name}, {count} tokens"] = relative_error(value.double(), own)
    return worst(errors, 0.0)


def token_counts(session: Session) -> list[int]:
    """Return the token counts, padding included, at which the run multiplies by its 4-bit weights.

    bitsandbytes 0.50 has a fused kernel up to 32 rows and unpacks above: to agree at one count says nothing of another.
    Taken are the smallest and the largest micro-batch, the same of the evaluations, and those of generation.
    """
    run, batches = session.run, session.batches

    def tokens(rows: Sequence[Tokens]) -> int:
        columns = batches.collate(rows, batches.tokenizer.pad_token_id)["input_ids"]
        return len(columns) * len(columns[0])

    trained = [tokens(rows) for step in range(run.training.max_steps) for rows in batches.rows(step)]
    size = run.evaluation.batch_size
    splits = [batches.fixed(split) for split in run.evaluation.splits]
    evaluated = [tokens(rows[at : at + size]) for rows in splits for at in range(0, len(rows), size)]
    return sorted({*SHORT, *(limit(counts) for counts in (trained, evaluated) if counts for limit in (min, max))})


def _of_each_shape(modules: dict[str, Any]) -> list[tuple[str, Any]]:
    return list({tuple(m.weight.quant_state.shape): (n, m) for n, m in modules.items()}.values())


def _keeps_unpacked(session: Session, module: Any) -> bool:
    """Whether autograd is handed a floating tensor of the weight's size when the input needs a gradient."""
    rows, columns = module.weight.quant_state.shape
    x = torch.zeros(1, columns, device=session.device, dtype=DTYPES[session.precision], requires_grad=True)
    sizes = [0]

    def note(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel() if tensor.is_floating_point() else 0)
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        module(x)
    return max(sizes) >= int(rows * columns)


def _quantized_again(session: Session, weights: WeightFile, modules: dict[str, Any]) -> dict[str, bool]:
    """Return whether our own code quantises the smallest linears alike: wrong statistics hide in the 4 bits' error."""
    sizes = {name: math.prod(module.weight.quant_state.shape) for name, module in modules.items()}
    same: dict[str, bool] = {}
    for name in (name for name, size in sizes.items() if size == min(sizes.values()) and f"{name}.weight" in weights):
        held, state = modules[name].weight, modules[name].weight.quant_state
        # a script may load its base in another dtype than it computes in
        loaded = DTYPES[session.precision] if session.run.holds(Premise.DTYPES_DECLARED) else state.dtype
        weight = weights.tensor(f"{name}.weight").to(session.device, loaded)
        own, own_scales = quantised(weight, block=state.blocksize, quant_type=state.quant_type, nested=state.nested)
        of_values = (values(held) != own).float().mean()
        of_scales = ((scales(held) - own_scales).abs() > SCALE_ROUNDING * own_scales).float().mean()
        same[name] = bool(of_values <= VALUES_ON_THE_FENCE and of_scales <= SCALES_ON_THE_FENCE)
    return same
