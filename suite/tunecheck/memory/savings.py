"""Settings of a run, one of which changed would save memory."""

from tunecheck.config.schema import Run

CHUNK_TOKENS = 128
_TO_QLORA = ("strategy=qlora", "quantization={}")


def changes_of(run: Run) -> dict[tuple[str, ...], bool]:
    """Return every change that saves memory in some run, and whether it can in this one.

    A change is the words for --set; some take several keys. One that cannot is set already, or does not apply.
    """
    training, smallest_batch = run.training, 1 if run.data.canary is None else 2
    native = run.trainer == "native"  # transformers' has no chunked loss and no offloading
    return {
        ("profile=lean",): native and run.profile != "lean",
        ("training.gradient_checkpointing=true",): not training.gradient_checkpointing,
        (f"training.loss_chunk_tokens={CHUNK_TOKENS}",): native and training.loss_chunk_tokens is None,
        (f"training.micro_batch_size={smallest_batch}",): training.micro_batch_size > smallest_batch,
        ("lora.adapter_dtype=mixed",): run.lora is not None and run.lora.adapter_dtype == "fp32",
        _TO_QLORA: run.strategy == "lora",
        (*_TO_QLORA, "lora={target_modules: [q_proj, v_proj]}"): run.trains_base,
        ("training.offload=activations",): native and training.offload == "none" and not run.trains_base,
        ("training.offload=parameters",): (
            native and training.offload == "none" and run.trains_base and training.precision != "fp16"
        ),
        ("quantization.double_quant=true",): run.quantization is not None and not run.quantization.double_quant,
    }
