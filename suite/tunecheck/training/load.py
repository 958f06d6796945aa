"""Weights on disk to a model on the device, quantised as the run asks. Imports torch; training child only."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tunecheck.config.compatibility import config_error
from tunecheck.config.schema import Run
from tunecheck.core.errors import BrokenRules, GpuUnusable, Unsupported, WeightsDamaged
from tunecheck.core.known_bugs import CUDNN_ATTENTION, cudnn_attention_gives_nan
from tunecheck.core.text import one_line
from tunecheck.strategies import STRATEGIES
from tunecheck.strategies.mixed_precision import measure_magnitudes
from tunecheck.training.data import Batches
from tunecheck.training.ranks import Exchange, Ranks
from tunecheck.training.restore import REPACKS
from tunecheck.training.session import Session

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def resolve_device(asked: str) -> torch.device:
    """The device to use for auto, cuda or cpu. Raises GpuUnusable when a GPU is asked for and torch sees none."""
    if asked == "cpu" or (asked == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise GpuUnusable("device: cuda is asked for, but torch sees no GPU; `tunecheck doctor` says why")
    return torch.device("cuda", torch.cuda.current_device())


def resolve_precision(run: Run, device: torch.device) -> str:
    """bf16, fp16 or fp32. auto is bf16 where the device computes it natively, else fp32, and fp16 on older GPUs.

    Compute capability 7.x (V100, T4) has tensor cores for fp16 alone, and so have bitsandbytes 0.50's 4-bit kernels: in
    fp32 each product dequantises its weight first (`_gemm_4bit_use_custom_cuda`). fp16 needs the native trainer's
    gradient scaler, which takes no fp16 gradients and does not follow them to the CPU.

    On a CPU without AVX512-BF16 or AMX one QLoRA step of SmolLM2-135M (2 x 64 tokens, 2 cores) takes 24 s in bf16 and
    0.9 s in fp32 (AMD EPYC with AVX2, torch 2.13.0).
    """
    if (training := run.training).precision != "auto":
        return training.precision
    if device.type == "cuda":
        major, _ = torch.cuda.get_device_capability(device)
        own_dtype = run.lora is not None and run.lora.adapter_dtype == "model"
        scaled = run.trainer == "native" and training.offload != "parameters" and not own_dtype
        return "bf16" if major >= 8 else "fp16" if major == 7 and scaled else "fp32"
    flags = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return "bf16" if flags.get("avx512_bf16") or flags.get("amx_bf16") else "fp32"


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer with a padding token. Raises WeightsDamaged for bad files, Unsupported without end token."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever the library raises for a file of another type than it expects
        why = f"{type(error).__name__}: {one_line(str(error), 200)}"
        raise WeightsDamaged(
            f"{folder}: its tokenizer cannot be loaded ({why}). What to do: copy or download its tokenizer files again"
        ) from error
    if tokenizer.eos_token_id is None:
        raise Unsupported(f"{folder}: the tokenizer has no end token, so no answer could ever end")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.unk_token or tokenizer.eos_token
    return tokenizer


def load_base(run: Run, folder: Path, device: torch.device, precision: str) -> Any:
    """The base model in eval mode on the device, 4-bit where the run says so, its dtype the run's precision.

    A base that learns, in whole or in part, has fp32 weights whatever the precision: updates below half a bf16 ulp
    would be lost. Raises what torch raises when memory runs out.
    """
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig, core_model_loading

    options: dict[str, Any] = {}
    if run.quantization is not None:
        options["quantization_config"] = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
            load_in_4bit=True,  # every field is set, since bitsandbytes' defaults are fp4 and fp32
            bnb_4bit_quant_type=run.quantization.quant_type,
            bnb_4bit_use_double_quant=run.quantization.double_quant,
            bnb_4bit_compute_dtype=DTYPES[precision],
        )
    # transformers 5 would note an error of a conversion, lack of memory too, go on, and raise one in the end that does
    # not name it: to the fallback chain that would be a failure, not a reason for its next step
    with mock.patch.object(core_model_loading, "log_conversion_errors", return_value=nullcontext()):
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32 if run.trains_base else DTYPES[precision],
            device_map={"": device},
            attn_implementation=run.training.attention,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            **options,
        )
    model.requires_grad_(False)
    model.config.use_cache = False
    return model


def apply_workarounds(model: Any, device: torch.device, run: Run) -> tuple[str, ...]:
    """Work round known library bugs on this model; return a sentence for each that was needed."""
    sentences = _choose_kernels(run, device)
    if torch.get_float32_matmul_precision() != "highest":  # TORCH_ALLOW_TF32_CUBLAS_OVERRIDE of NVIDIA's images
        torch.set_float32_matmul_precision("highest")
        sentences += ("TF32 was on for products of fp32 matrices, and is switched off: it keeps 10 bits of 23",)
    # see `without_repacking`; nothing packs the weights back, so that merging would destroy the model, too
    repacking = [module for module in model.modules() if device.type == "cpu" and getattr(module, REPACKS, False)]
    for module in repacking:
        setattr(module, REPACKS, False)
    if repacking:
        off = f"CPU inference repacking switched off on {len(repacking)} Linear4bit modules"
        sentences += (f"bitsandbytes 0.50: {off}",)
    return sentences


def _choose_kernels(run: Run, device: torch.device) -> tuple[str, ...]:
    """Switch cuDNN attention on or off for this process; return a sentence where that works round a library's bug.

    It is off in a deterministic run, since its backward pass has no deterministic variant; the others have one.
    """
    wanted, sentences = run.training.cudnn_attention, tuple[str, ...]()
    if wanted is None and device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if cudnn_attention_gives_nan(torch.__version__, f"{major}.{minor}"):
            wanted = False
            if not run.training.deterministic:
                off = f"cuDNN attention switched off, whose gradients may be NaN on compute capability {major}.{minor}"
                sentences = (f"torch {torch.__version__}: {off} ({CUDNN_ATTENTION})",)
    torch.backends.cuda.enable_cudnn_sdp(wanted is not False and not run.training.deterministic)
    return sentences


def apply_strategy(model: Any, run: Run) -> Any:
    """Return the model with exactly the tensors of the run's strategy trainable.

    Raises ConfigError where it lacks what the strategy names, Unsupported where it cannot be trained so at all.
    """
    try:
        return STRATEGIES[run.strategy].adapt(model, run)
    except BrokenRules as error:
        raise config_error(run, *error.rules) from error


def parts_of(
    run: Run,
    folder: Path,
    device: torch.device,
    *,
    weights_on: torch.device | None = None,
    adapt: Callable[[Any, Run], Any] = apply_strategy,
) -> dict[str, Any]:
    """The fields of a session that no trainer makes otherwise; `adapt` makes the model of the base on `weights_on`."""
    torch.manual_seed(run.training.seed)
    precision, tokenizer = resolve_precision(run, device), load_tokenizer(folder)
    base = load_base(run, folder, device if weights_on is None else weights_on, precision)
    workarounds = apply_workarounds(base, device, run)
    model = adapt(base, run)
    if run.lora is not None and run.lora.use_dora:
        workarounds += measure_magnitudes(model)
    batches, ranks = Batches(run, tokenizer, device), Ranks.of(run)
    fields = {"run": run, "folder": folder, "device": device, "precision": precision, "merge": merge}
    fields |= {"ranks": ranks, "processes": ranks.count, "exchange": Exchange.of(run)}
    return {**fields, "model": model, "tokenizer": tokenizer, "batches": batches, "workarounds": workarounds}


def merge(session: Session, saved: Path) -> Any:
    """The session's base with this saved adapter in its weights: no peft left, 4-bit weights unpacked to its dtype.

    The session's own model is used up, so that no second base is in memory. A 4-bit base is unpacked first: the adapter
    was trained beside those values (peft issues 2321 and 1035). Raises ValueError for an adapter that is not finite.
    """
    from peft import PeftModel

    base = session.model.unload()
    base = base if session.run.quantization is None else base.dequantize()
    return PeftModel.from_pretrained(base, saved).merge_and_unload(safe_merge=True)
