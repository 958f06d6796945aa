"""neural-net-checklist: its assertions for causal language models, on the script's model and first batch.

The two about fresh weights (the loss is that of a uniform guess, the outputs are calibrated) are left out: no model
that is fine-tuned meets them. The inputs are embeddings, as it asks for where tokens are no floats.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from neural_net_checklist import torch_diagnostics as checklist

from benchmarks.peers.scenarios import Scenario

ROWS = 4
"""Of the batch; three at least are asked for."""
OVERFIT_STEPS = 300
"""Of its 65,536: the tiny model takes 150 with a rate of 3e-3."""


class OnEmbeddings(torch.nn.Module):
    """The script's model from embeddings to logits, as the checklist calls it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        logits: torch.Tensor = self.model(inputs_embeds=embeddings).logits
        return logits


def said(scenario: Scenario, folder: Path) -> list[str]:
    """Return the assertions that fail."""
    script = scenario.script()
    model, tokenizer = script.model_and_tokenizer()
    batch = script.collate(tokenizer, script.examples(tokenizer)[:ROWS])
    inputs = model.get_input_embeddings()(batch["input_ids"]).detach()
    targets = torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)

    def fresh() -> OnEmbeddings:
        return OnEmbeddings(script.model_and_tokenizer()[0])

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs.flatten(0, 1).float(), targets.flatten())

    def overfit() -> None:
        model = fresh()
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
        checklist.assert_overfit_to_batch(
            model, data, threshold=0.1, max_steps=OVERFIT_STEPS, optimizer=optimizer, loss_fn=loss
        )

    data = (inputs, targets)
    assertions: dict[str, Callable[[], None]] = {
        "forward is batch independent": lambda: checklist.assert_forward_batch_independence(fresh, data),
        "forward is causal": lambda: checklist.assert_forward_causal_property(fresh, data),
        "gradients are non-zero": lambda: checklist.assert_non_zero_gradients(fresh(), data),
        "backward is batch independent": lambda: checklist.assert_backward_batch_independence(fresh, data),
        "backward is causal": lambda: checklist.assert_backward_causal_property(fresh, data),
        "the model can overfit to a batch": overfit,
    }
    failed = []
    for name, assertion in assertions.items():
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                assertion()
            except Exception as error:
                failed.append(f"not so: {name}: {type(error).__name__}: {error}")
    return failed
