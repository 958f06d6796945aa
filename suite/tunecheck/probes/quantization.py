"""The 4-bit linears as they really are, and their kernel against our own dequantisation."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from tunecheck.core.evidence import Quantization
from tunecheck.core.premises import Premise
from tunecheck.models.shapes import is_layer_linear, packed_bytes
from tunecheck.probes.reference.backward import gradients_by
from tunecheck.probes.reference.four_bit import is_packed, matrix, quantised, scales, statistics, values
from tunecheck.probes.reference.measures import counted, dtype_name, relative_error, worst
from tunecheck.probes.reference.weight_file import WeightFile, file_name
from tunecheck.training.data import Tokens
from tunecheck.training.events import Probe
from tunecheck.training.load import DTYPES
from tunecheck.training.session import Session

SHORT = (1, 17)
"""Tokens of a forward pass of generation: one with a cache, a short prompt without."""
VALUES_ON_THE_FENCE, SCALES_ON_THE_FENCE = 5e-3, 0.05
"""Shares that may be rounded to the other side where two are as near: up to 0.001 and 0.008 of random bf16 weights."""
SCALE_ROUNDING = 1e-4
"""Of a scale; the next one of the 8-bit map is 1e-3 away and more."""


class QuantizationProbe(Probe):
    """Looks at every quantised linear once, before training."""

    emits = (Quantization,)

    def start(self, session: Session) -> None:
        """Count, weigh, and multiply by one linear of each shape."""
        if session.run.quantization is None:
            return
        weights, double_quant = WeightFile(session.folder), session.run.quantization.double_quant
        linears = [name for name in weights.names if is_layer_linear(name, weights.shape(name))]
        named = [(name, m) for name, m in session.model.named_modules() if is_packed(m._parameters.get("weight"))]
        modules = {file_name(f"{name}.weight").removesuffix(".weight"): module for name, module in named}
        sizes = [prod(weights.shape(f"{name}.weight")) for name in modules if f"{name}.weight" in weights]
        packed = [module.weight for module in modules.values()]
        at, error = _kernel_error(session, modules)
        again = _quantized_again(session, weights, modules)
        keeping = tuple(name for name, module in _of_each_shape(modules) if _keeps_unpacked(session, module))
        seen = Quantization(
            expected_modules=tuple(name.removesuffix(".weight") for name in linears),
            quantized_modules=tuple(sorted(modules)),
            quant_types=counted(weight.quant_state.quant_type for weight in packed),
            block_sizes=counted(weight.quant_state.blocksize for weight in packed),
            double_quant=counted(weight.quant_state.nested for weight in packed),
            compute_dtypes=counted(dtype_name(module.compute_dtype) for module in modules.values()),
            packed_bytes=sum(_bytes(weight) for weight in packed),
            expected_bytes=sum(packed_bytes(size, double_quant) for size in sizes),
            requantized=len(again),
            requantized_differing=tuple(name for name, same in again.items() if not same),
            kernel_error=error,
            kernel_error_at=at,
            unpacked_kept=keeping,
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

    bitsandbytes chooses its kernel by the number of rows and the weight's shape (a fused one up to 32 rows, unpacking
    and a plain product above, in 0.50), so that a kernel that agrees at one count says nothing about another. Taken are
    the smallest and the largest micro-batch, the same of the evaluations, and those of generation.
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
    """The last linear of each shape, with its name."""
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
    """Linears of the smallest shape: whether the file's weights, quantised by our own code, are the same.

    What is wrong in the statistics alone moves every weight by less than the error of 4 bits, and hides in it.
    """
    sizes = {name: prod(module.weight.quant_state.shape) for name, module in modules.items()}
    same: dict[str, bool] = {}
    for name in (name for name, size in sizes.items() if size == min(sizes.values()) and f"{name}.weight" in weights):
        held = modules[name].weight
        # a script may load its base in another dtype than it computes in
        declared = session.run.holds(Premise.DTYPES_DECLARED)
        loaded = DTYPES[session.precision] if declared else held.quant_state.dtype
        wanted_values, wanted_scales = quantised(
            weights.tensor(f"{name}.weight").to(session.device, loaded),
            block=held.quant_state.blocksize,
            quant_type=held.quant_state.quant_type,
            nested=held.quant_state.nested,
        )
        values_differ = values(held) != wanted_values
        scales_differ = (scales(held) - wanted_scales).abs() > SCALE_ROUNDING * wanted_scales
        of_values, of_scales = values_differ.float().mean(), scales_differ.float().mean()
        same[name] = bool(of_values <= VALUES_ON_THE_FENCE and of_scales <= SCALES_ON_THE_FENCE)
    return same


def _bytes(weight: Any) -> int:
    tensors = [weight, weight.quant_state.code, *(tensor for _, tensor in statistics(weight))]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
