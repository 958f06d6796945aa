"""What an adapter's dropout drops, and what falls elsewhere. CPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tunecheck.probes.adapters import DropoutProbe

SHARE = 0.2


def adapted(dtype: torch.dtype) -> Any:
    """A model of one layer with adapters that drop."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    base = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes)).to(dtype)
    config = LoraConfig(r=4, lora_dropout=SHARE, target_modules=["q_proj", "v_proj", "down_proj"])
    return get_peft_model(base, config)


def dropped(model: Any, precision: str) -> Any:
    """What the probe says of it."""
    said: list[Any] = []
    lora = SimpleNamespace(dropout=SHARE, use_dora=False, scale_of=lambda _: 8 / 4)
    session: Any = SimpleNamespace(
        model=model,
        precision=precision,
        device=torch.device("cpu"),
        run=SimpleNamespace(lora=lora, training=SimpleNamespace(offload="none")),
        batches=SimpleNamespace(heldout=[SimpleNamespace(input_ids=list(range(1, 33)))]),
    )
    DropoutProbe(said.append).start(session)
    return said[0]


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float32, "fp32"), (torch.bfloat16, "bf16")])
def test_what_falls_by_itself_is_counted(dtype: torch.dtype, precision: str) -> None:
    """About the share, all else fits; and the factors are as they were."""
    model = adapted(dtype)
    seen = dropped(model, precision)

    assert seen.pairs > 2500
    assert seen.odd == 0
    assert seen.base_untouched
    assert abs(seen.dropped / (2 * seen.pairs) - SHARE) < 0.03
    assert not any(p.any() for name, p in model.named_parameters() if ".lora_B." in name)


@pytest.mark.parametrize("part", ["lora_A.default", "lora_B.default", "_proj"])
@pytest.mark.parametrize(("dtype", "precision"), [(torch.float32, "fp32"), (torch.bfloat16, "bf16")])
def test_what_falls_behind_a_as_well_is_seen(part: str, dtype: torch.dtype, precision: str) -> None:
    """Of what a factor or the whole returns, beside the dropout that is configured."""
    model = adapted(dtype)
    for module in [module for name, module in model.named_modules() if name.endswith(part)]:
        module.register_forward_hook(lambda _m, _args, out: torch.nn.functional.dropout(out, SHARE / 4))

    assert dropped(model, precision).odd > 0
