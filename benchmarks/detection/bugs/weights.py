"""Base weights, buffers and quantization that are not the file's or not as configured."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from benchmarks.detection.bugs.bug import bug
from benchmarks.detection.bugs.parts import after_first_evaluation, after_step, change_window, decoder, layers

if TYPE_CHECKING:
    import torch

    from tunecheck.training.session import Session


@bug(
    "B46",
    "A weight initialised again after loading",
    caught_by="base_matches_file",
    source="huggingface/transformers#46620, #46632",
)
def reinitialized_weight(session: Session) -> None:
    """Initialize one down projection again after loading."""
    import torch

    weight = layers(session)[0].mlp.down_proj.weight
    noise = torch.randint(0, 256, weight.shape, generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    weight.data.copy_(noise.to(weight.device))


@bug(
    "B48",
    "Rotary frequencies uninitialised",
    caught_by="base_matches_file",
    source="huggingface/transformers#45902, #48892, unslothai/unsloth#4112",
)
def rotary_buffer_uninitialized(session: Session) -> None:
    """Fill the rotary frequencies with noise: they are in no file, so nothing loads them."""
    decoder(session).rotary_emb.inv_freq.uniform_(0, 0.01)


@bug(
    "B50",
    "Weights rounded on their way",
    caught_by="base_matches_file",
    source="huggingface/transformers#46459, #24774, #13076",
)
def embedding_rounded(session: Session) -> None:
    """Round the embedding to eight bits."""
    import torch

    weight = session.model.get_input_embeddings().weight
    weight.data.copy_(weight.data.to(torch.float8_e4m3fn))


def _unpacked(module: Any) -> torch.nn.Linear:
    """Return the 4-bit linear layer as a plain one."""
    import torch

    from tunecheck.probes.reference.four_bit import unpack

    rows, columns = module.weight.quant_state.shape
    plain = torch.nn.Linear(columns, rows, bias=False, dtype=module.compute_dtype)
    plain.weight = torch.nn.Parameter(
        unpack(module.weight, 0, rows * columns).view(rows, columns).to(module.compute_dtype), requires_grad=False
    )
    return plain


@bug(
    "B51", "4-bit asked, full precision loaded", caught_by="quantization_as_configured", source="unslothai/unsloth#5344"
)
def full_precision_instead_of_4_bit(session: Session) -> None:
    """Leave the linear layers of one decoder layer unquantized."""
    mlp = layers(session)[-1].mlp
    for name, module in list(mlp.named_children()):
        if getattr(module, "weight", None) is not None:
            setattr(mlp, name, _unpacked(module))


@bug(
    "B55",
    "4-bit linears compute in fp32",
    caught_by="dtypes_as_configured",
    source="bitsandbytes#2077, huggingface/transformers#47378, huggingface/trl#582",
    settings=("training.precision=bf16",),
)
def compute_dtype_fp32(session: Session) -> None:
    """Let the 4-bit linear layers compute in fp32, bitsandbytes' default: right, but several times slower."""
    import torch

    for module in session.model.modules():
        if hasattr(module, "compute_dtype"):
            module.compute_dtype = torch.float32


@bug(
    "B58",
    "Norms and embedding upcast to fp32",
    caught_by="dtypes_as_configured",
    source="huggingface/peft#816, #3265, #1149, bitsandbytes#1569",
    settings=("training.precision=bf16",),
)
def norms_and_embedding_upcast(session: Session) -> None:
    """Upcast everything that is not quantized to fp32, as prepare_model_for_kbit_training does."""
    import torch

    for name, parameter in session.model.named_parameters():
        if parameter.dtype in (torch.bfloat16, torch.float16) and ".lora_" not in name:
            parameter.data = parameter.data.float()


@bug(
    "B83",
    "The head is untied in memory",
    caught_by="base_matches_file",
    source="huggingface/transformers#45127, #45156, #30202, #38870",
)
def head_untied(session: Session) -> None:
    """Replace the tied head with a copy of the embedding."""
    import torch

    head = session.model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=False)


@bug("B110", "A bit of a weight flips", caught_by="base_untouched", source="k2-fsa/icefall#1764, MIC-DKFZ/nnUNet#1351")
def flipped_weight(session: Session) -> None:
    """Flip one bit of a frozen weight after the first step, as a faulty GPU would."""
    import torch

    weight, flipped = layers(session)[0].mlp.up_proj.weight, list[bool]()

    def flip() -> None:
        if not flipped:
            flipped.append(True)
            weight.data.view(torch.uint8).flatten()[5] ^= 1

    after_step(session, flip)


@bug(
    "B115",
    "An evaluation leaves the weights packed otherwise",
    caught_by="base_untouched",
    source="bitsandbytes 0.50.2, as B114; a merge then destroys the model",
)
def repacked_by_evaluation(session: Session) -> None:
    """Reorder the packed bytes of every 4-bit weight at the first evaluation."""

    def repack() -> None:
        for parameter in session.model.parameters():
            if getattr(parameter, "quant_state", None) is not None:
                parameter.data.copy_(parameter.data.flip(0))

    after_first_evaluation(session, repack)


@bug(
    "B116",
    "Block scales belong to other blocks",
    caught_by="base_matches_file",
    source="bitsandbytes 0.50.2, blocks of 128 and 256 on the CPU",
)
def block_scales_shifted(session: Session) -> None:
    """Shift the block scales in the second half of one weight by one block."""
    absmax = layers(session)[0].mlp.up_proj.weight.quant_state.absmax
    half = len(absmax) // 2
    absmax[half:] = absmax[half:].roll(7)


@bug("X27", "A norm's weight is 0", caught_by="base_matches_file")
def norms_reinitialized(session: Session) -> None:
    """Set a norm's weight to 0, as for an architecture that adds 1 to it."""
    layers(session)[0].input_layernorm.weight.data.zero_()


@bug("X28", "The head is 4-bit too", caught_by="quantization_as_configured")
def head_quantized(session: Session) -> None:
    """Quantize the head to 4 bit too."""
    bitsandbytes: Any = importlib.import_module("bitsandbytes")

    head = session.model.get_output_embeddings()
    packed = bitsandbytes.nn.Linear4bit(
        head.in_features, head.out_features, bias=False, compute_dtype=head.weight.dtype, quant_type="nf4"
    )
    packed.weight = bitsandbytes.nn.Params4bit(head.weight.data.clone(), requires_grad=False, quant_type="nf4")
    session.model.set_output_embeddings(packed.to(session.device))


@bug("X29", "A part in another dtype", caught_by="dtypes_as_configured")
def moved_to_another_dtype(session: Session) -> None:
    """Upcast the final norm (to float64, so that it shows in fp32 runs too)."""
    norm, dtype = decoder(session).norm.double(), session.model.dtype
    norm.register_forward_hook(lambda _m, _a, out: out.to(dtype))


@bug("X30", "fp4 values read as nf4", caught_by="base_matches_file")
def wrong_code(session: Session) -> None:
    """Pack one weight with fp4 values that are read as nf4."""
    from tunecheck.probes.reference.four_bit import unpack

    bitsandbytes: Any = importlib.import_module("bitsandbytes")

    weight = layers(session)[0].mlp.up_proj.weight
    rows, columns = weight.quant_state.shape
    whole = unpack(weight, 0, rows * columns).view(rows, columns)
    packed, _ = bitsandbytes.functional.quantize_4bit(whole, blocksize=64, quant_type="fp4")
    weight.data.copy_(packed.view_as(weight.data))


@bug("X31", "Two layers' weights exchanged", caught_by="base_matches_file")
def layers_loaded_in_each_others_place(session: Session) -> None:
    """Exchange the MLP weights of two layers."""
    first, last = layers(session)[0], layers(session)[-1]
    first.mlp, last.mlp = last.mlp, first.mlp


@bug("X32", "The 4-bit kernel wrong for one row", caught_by="kernel_agrees")
def wrong_kernel_for_one_row(session: Session) -> None:
    """Return NaN from the 4-bit kernel for a single row, in linear layers of one shape only."""

    def spoil(_module: Any, arguments: Any, out: torch.Tensor) -> torch.Tensor:
        return out * float("nan") if arguments[0].shape[:-1] == (1,) else out

    for layer in layers(session):
        layer.mlp.down_proj.register_forward_hook(spoil)


@bug("X82", "A part left on another device", caught_by="device_as_configured")
def part_left_on_another_device(session: Session) -> None:
    """Leave one buffer on another device."""
    import torch

    session.model.register_buffer("left_behind", torch.empty(4, device="meta"), persistent=False)


@bug("X90", "The weights were never loaded", caught_by="base_matches_file")
def never_loaded(session: Session) -> None:
    """Replace every weight with a fresh initialization."""
    import torch

    generator = torch.Generator().manual_seed(1)
    for name, parameter in session.model.named_parameters():
        if ".lora_" in name:
            continue
        if parameter.dtype == torch.uint8:
            noise = torch.randint(0, 256, parameter.shape, generator=generator, dtype=torch.uint8)
        elif parameter.dim() == 1:
            noise = torch.ones(parameter.shape)
        else:
            noise = torch.randn(parameter.shape, generator=generator) * 0.02
        parameter.data.copy_(noise)


@bug(
    "V12",
    "The offset of doubly quantised scales is rounded to bf16",
    caught_by=("kernel_agrees", "base_matches_file", "quantization_as_configured"),
    source="bitsandbytes-foundation/bitsandbytes#1971",
    cohort="blind",
    must_say="The 4-bit weights, unpacked, or their statistics are not what quantising the file's weights gives.",
)
def offset_in_bf16(session: Session) -> None:
    """Keep the offset of the double quantized block scales in bf16, which moves every 4-bit weight a little."""
    from tunecheck.probes.reference.four_bit import is_packed

    for parameter in session.model.parameters():
        if is_packed(parameter) and parameter.quant_state.nested:
            parameter.quant_state.offset = parameter.quant_state.offset.bfloat16().float()


@bug(
    "V13",
    "Every down_proj is left unquantised",
    caught_by="quantization_as_configured",
    cohort="blind",
    must_say="Not all linear layers are 4-bit as asked: the down_proj of every layer is kept whole.",
)
def modules_not_quantized(session: Session) -> None:
    """Leave every down_proj unquantized, as by a pattern of modules to skip."""
    import torch

    from tunecheck.probes.reference.weight_file import WeightFile

    file = WeightFile(session.folder)
    for number, layer in enumerate(layers(session)):
        weight = file.tensor(f"model.layers.{number}.mlp.down_proj.weight")
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float32)
        linear.weight = torch.nn.Parameter(weight.float(), requires_grad=False)
        layer.mlp.down_proj = linear.to(session.device, layer.input_layernorm.weight.dtype)


@bug(
    "V14",
    "A tied head is a separate copy that does not learn",
    caught_by=("base_matches_file", "optimizer_coverage", "trainable_moved", "trainable_set"),
    source="axolotl-ai-cloud/axolotl#577",
    cohort="blind",
    settings=("strategy=full", "lora=null", "quantization=null"),
    must_say=(
        "The head is no longer the embedding, or a trainable tensor is unknown to the optimizer and does not move."
    ),
)
def head_untied_from_the_embedding(session: Session) -> None:
    """Replace the tied head with a copy that no optimizer holds: only the embedding learns."""
    import torch

    head = session.model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone())


@bug(
    "V68",
    "4-bit weights are quantised a second time",
    caught_by=("quantization_as_configured", "base_matches_file", "kernel_agrees"),
    source="bitsandbytes-foundation/bitsandbytes#937, #953",
    cohort="blind-second",
    must_say="The 4-bit weights or their block scales are not what quantising the file's weights gives.",
)
def quantized_again(session: Session) -> None:
    """Unpack 4-bit weights to bf16 and quantize them again, as on a move between devices."""
    from tunecheck.probes.reference.four_bit import is_packed

    functional: Any = importlib.import_module("bitsandbytes.functional")
    for parameter in session.model.parameters():
        if is_packed(parameter):
            state = parameter.quant_state
            whole = functional.dequantize_4bit(parameter.data, state).bfloat16()
            packed, again = functional.quantize_4bit(
                whole.to(state.dtype),
                blocksize=state.blocksize,
                compress_statistics=state.nested,
                quant_type=state.quant_type,
            )
            parameter.data.copy_(packed.view_as(parameter.data))
            parameter.quant_state = again


@bug(
    "W25",
    "A frozen weight is off in the middle of the run",
    caught_by=("base_untouched", "accumulation_oracle"),
    cohort="unseen-second",
)
def frozen_weight_off_for_a_while(session: Session) -> None:
    """Scale a norm's weight by 1.05 for steps 3 to 5 and put it back."""
    import torch

    weight = layers(session)[0].input_layernorm.weight
    kept = weight.detach().clone()

    def fetch(step: int, window: Any) -> Any:
        with torch.no_grad():
            weight.copy_(kept * 1.05 if 3 <= step <= 5 else kept)
        return window(step)

    change_window(session, fetch)
