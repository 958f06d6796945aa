"""Base weights, buffers and quantisation that are not the file's or not what was asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.detection.bugs.parts import after_first_evaluation, after_step, decoder, layers
from suite.probes.reference.four_bit import unpack

if TYPE_CHECKING:
    from suite.training.session import Session


def never_loaded(session: Session) -> None:
    """No weight is the file's: all of them are as an initialisation leaves them."""
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


def reinitialised_weight(session: Session) -> None:
    """One down projection is initialised again after loading."""
    weight = layers(session)[0].mlp.down_proj.weight
    noise = torch.randint(0, 256, weight.shape, generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    weight.data.copy_(noise.to(weight.device))


def rotary_buffer_uninitialised(session: Session) -> None:
    """The rotary frequencies are noise: they are in no file, so nothing loads them."""
    decoder(session).rotary_emb.inv_freq.uniform_(0, 0.01)


def embedding_rounded(session: Session) -> None:
    """The embedding went through eight bits on its way."""
    weight = session.model.get_input_embeddings().weight
    weight.data.copy_(weight.data.to(torch.float8_e4m3fn))


def norms_re_initialised(session: Session) -> None:
    """A norm's weight is 0 instead of the file's, as for an architecture that adds 1 to it."""
    layers(session)[0].input_layernorm.weight.data.zero_()


def full_precision_instead_of_4_bit(session: Session) -> None:
    """The linears of one layer were never quantised."""
    mlp = layers(session)[-1].mlp
    for name, module in list(mlp.named_children()):
        if getattr(module, "weight", None) is not None:
            setattr(mlp, name, _unpacked(module))


def _unpacked(module: Any) -> torch.nn.Linear:
    rows, columns = module.weight.quant_state.shape
    plain = torch.nn.Linear(columns, rows, bias=False, dtype=module.compute_dtype)
    plain.weight = torch.nn.Parameter(
        unpack(module.weight, 0, rows * columns).view(rows, columns).to(module.compute_dtype), requires_grad=False
    )
    return plain


def head_quantised(session: Session) -> None:
    """The head is 4-bit too."""
    bitsandbytes: Any = importlib.import_module("bitsandbytes")

    head = session.model.get_output_embeddings()
    packed = bitsandbytes.nn.Linear4bit(
        head.in_features, head.out_features, bias=False, compute_dtype=head.weight.dtype, quant_type="nf4"
    )
    packed.weight = bitsandbytes.nn.Params4bit(head.weight.data.clone(), requires_grad=False, quant_type="nf4")
    session.model.set_output_embeddings(packed.to(session.device))


def head_untied(session: Session) -> None:
    """The head is a copy of the embedding instead of the same tensor."""
    head = session.model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=False)


def compute_dtype_fp32(session: Session) -> None:
    """The 4-bit linears compute in fp32, bitsandbytes' default: right, and several times slower."""
    for module in session.model.modules():
        if hasattr(module, "compute_dtype"):
            module.compute_dtype = torch.float32


def norms_and_embedding_upcast(session: Session) -> None:
    """Everything that is not quantised is fp32, as by prepare_model_for_kbit_training."""
    for name, parameter in session.model.named_parameters():
        if parameter.dtype in (torch.bfloat16, torch.float16) and ".lora_" not in name:
            parameter.data = parameter.data.float()


def moved_to_another_dtype(session: Session) -> None:
    """The final norm is upcast (to float64 here, so that it shows in fp32 runs too)."""
    norm, dtype = decoder(session).norm.double(), session.model.dtype
    norm.register_forward_hook(lambda _m, _a, out: out.to(dtype))


def repacked_by_evaluation(session: Session) -> None:
    """The first evaluation leaves the packed bytes of every 4-bit weight in another order."""

    def repack() -> None:
        for parameter in session.model.parameters():
            if getattr(parameter, "quant_state", None) is not None:
                parameter.data.copy_(parameter.data.flip(0))

    after_first_evaluation(session, repack)


def block_scales_shifted(session: Session) -> None:
    """The scales of one weight's blocks belong to the blocks after them, in the second half of the weight."""
    absmax = layers(session)[0].mlp.up_proj.weight.quant_state.absmax
    half = len(absmax) // 2
    absmax[half:] = absmax[half:].roll(7)


def wrong_code(session: Session) -> None:
    """One weight was packed with the values of fp4 and is read with those of nf4."""
    bitsandbytes: Any = importlib.import_module("bitsandbytes")

    weight = layers(session)[0].mlp.up_proj.weight
    rows, columns = weight.quant_state.shape
    whole = unpack(weight, 0, rows * columns).view(rows, columns)
    packed, _ = bitsandbytes.functional.quantize_4bit(whole, blocksize=64, quant_type="fp4")
    weight.data.copy_(packed.view_as(weight.data))


def layers_loaded_in_each_others_place(session: Session) -> None:
    """The weights of two layers' MLPs are exchanged."""
    first, last = layers(session)[0], layers(session)[-1]
    first.mlp, last.mlp = last.mlp, first.mlp


def flipped_weight(session: Session) -> None:
    """One bit of a frozen weight flips after the first step, as with a bad card."""
    weight, flipped = layers(session)[0].mlp.up_proj.weight, list[bool]()

    def flip() -> None:
        if not flipped:
            flipped.append(True)
            weight.data.view(torch.uint8).flatten()[5] ^= 1

    after_step(session, flip)


def gradients_end_with_an_evaluation(session: Session) -> None:
    """After the first forward in eval mode no gradient passes a quantised linear any more, and nothing complains."""
    bitsandbytes: Any = importlib.import_module("bitsandbytes")

    state = {"evaluated": False}

    def notice(module: torch.nn.Module, *_: Any) -> None:
        state["evaluated"] = state["evaluated"] or not module.training

    session.model.register_forward_pre_hook(notice)
    for module in session.model.modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            module.register_forward_hook(lambda _m, _a, out: out.detach() + 0 * out if state["evaluated"] else out)


def wrong_kernel_for_one_row(session: Session) -> None:
    """The 4-bit kernel gives NaN for a single row, and only in linears of one shape."""

    def spoil(_module: Any, arguments: Any, out: torch.Tensor) -> torch.Tensor:
        return out * float("nan") if arguments[0].shape[:-1] == (1,) else out

    for layer in layers(session):
        layer.mlp.down_proj.register_forward_hook(spoil)


def part_left_on_another_device(session: Session) -> None:
    """A buffer was never moved to the device of the rest."""
    session.model.register_buffer("left_behind", torch.empty(4, device="meta"), persistent=False)
