"""Healthy variants of a run must all pass: a suite with false positives is switched off."""

from __future__ import annotations

import pytest
import tiny

from tunecheck.config import find_run, load_run
from tunecheck.core.finding import Status
from tunecheck.runner import Runner

PLAIN = ["quantization=null", "lora=null"]
UNTIED = ["model.architecture.tie_word_embeddings=false", "model.parameters=426624"]
QWEN2 = ["model.architecture.model_type=qwen2", "model.parameters=361600"]
STRATEGIES = ("full", "freeze_lower", "freeze_embeddings", "adapter_layers", "last_layers_and_head")
VARIANTS = {
    "another seed, batch of one, no clipping": [
        *("training.seed=7", "training.micro_batch_size=1", "training.max_grad_norm=null"),
    ],
    "no accumulation, fp4": ["training.gradient_accumulation_steps=1", "quantization.quant_type=fp4"],
    "long window, no double quantisation, linear schedule without warm-up": [
        *("training.gradient_accumulation_steps=5", "quantization.double_quant=false"),
        *("training.lr_scheduler=linear", "training.warmup_ratio=0"),
    ],
    "all linears of another rank, hard clipping": [
        "lora.target_modules=[q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]",
        *("lora.r=2", "lora.alpha=5", "training.max_grad_norm=0.01"),
    ],
    "adapters in the model's dtype, eager attention": ["lora.adapter_dtype=model", "training.attention=eager"],
    "bf16 with adapters in it": ["training.precision=bf16", "lora.adapter_dtype=model"],
    "checkpointing, constant rate with weight decay": [
        *("training.gradient_checkpointing=true", "training.lr_scheduler=constant", "training.weight_decay=0.1"),
    ],
    "lean": ["profile=lean", "training.loss_chunk_tokens=20"],
    "full with a loss in chunks": ["strategy=full", "quantization=null", "lora=null", "training.loss_chunk_tokens=9"],
    "lora on the plain base": ["strategy=lora", "quantization=null"],
    "full in bf16 autocast": ["strategy=full", "quantization=null", "lora=null", "training.precision=bf16"],
    "lean dora on a bf16 base": [
        *("lora.use_dora=true", "profile=lean", "training.precision=bf16", "strategy=lora", "quantization=null"),
    ],
    "dora with dropout": ["lora.use_dora=true", "lora.dropout=0.1"],
    "dora and rslora, resumed": ["lora.use_dora=true", "lora.use_rslora=true", "lora.r=4", "probes.resume_from=2"],
    "untied head": UNTIED,
    "resume and repeat": ["probes.repeat_steps=3", "probes.resume_from=2"],
    "resume with dropout": ["probes.resume_from=2", "lora.dropout=0.1"],
    "full, resumed": ["strategy=full", "quantization=null", "lora=null", "probes.resume_from=2"],
    "held-out rows": ["evaluation.splits=[probe, heldout]", "evaluation.batch_size=3", "evaluation.rows=7"],
    "evaluation in the middle, more than an epoch": [
        *("evaluation.at=[2]", "probes.oracle_steps=[1, 3]", "data.train_rows=6", "training.max_steps=7"),
    ],
    "qwen2, dora on a biased linear": [*QWEN2, "lora.use_dora=true"],
    **{f"qwen2, {name}": [*QWEN2, *PLAIN, f"strategy={name}"] for name in (*STRATEGIES, "bitfit")},
    "last_layers_and_head with an untied head": [*UNTIED, *PLAIN, "strategy=last_layers_and_head"],
    "bitfit in bf16": [*QWEN2, *PLAIN, "strategy=bitfit", "training.precision=bf16"],
    "freeze_lower, resumed and read back": [
        *PLAIN,
        "strategy=freeze_lower",
        "probes.resume_from=2",
        "probes.read_back=true",
    ],
    "bitfit with checkpointing": [
        *QWEN2,
        *PLAIN,
        "strategy=bitfit",
        "training.gradient_checkpointing=true",
        "training.loss_chunk_tokens=9",
    ],
}


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_a_healthy_variant_is_not_flagged(tmp_path, settings):
    """Every check passes, or is unjudged because the weights are random."""
    run = load_run(find_run("quick/smollm2-135m-qlora"), [*tiny.SETTINGS, *settings])
    trace = Runner(folder=tmp_path, environment={}, gpu=False).execute(run)
    found = [check(trace) for check in run.resolved_checks().values()]

    assert [
        str(f) for f in found if f.status is Status.FAILED or (f.status is Status.UNJUDGED and not f.expected)
    ] == []
    assert sum(f.passed for f in found) >= 18
