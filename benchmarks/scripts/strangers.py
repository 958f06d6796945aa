"""Healthy trainings that somebody wrote who knew the README alone, and that were flagged, or not judged, at first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from peft import IA3Config, PromptTuningConfig, get_peft_model
from transformers import Trainer

from benchmarks.scripts.bugs.mistake import with_loss
from benchmarks.scripts.parts import Change, fields, scored
from benchmarks.scripts.script import IGNORED, Script, loaded


def smoothed(logits: torch.Tensor, labels: torch.Tensor, items: Any) -> torch.Tensor:
    """Return the mean over the labels of a loss that is smoothed by hand."""
    scores, wanted = logits[:, :-1].log_softmax(dim=-1), labels[:, 1:]
    chosen = scores.gather(-1, wanted.clamp(min=0)[..., None])[..., 0]
    each = -0.9 * chosen - 0.1 * scores.mean(dim=-1)
    total: torch.Tensor = (each * (wanted != IGNORED)).sum() / items
    return total


class ByDepth(Trainer):
    """Rates that fall with the depth, and no decay of what has one dimension."""

    def create_optimizer(self, *_: Any) -> Any:
        """Return AdamW with a group for each tensor."""
        model: Any = self.model
        rates = [self.args.learning_rate * (0.8 if ".layers.0." in name else 1.0) for name, _ in _learning(model)]
        groups = [{"params": [p], "lr": rate} for (_, p), rate in zip(_learning(model), rates, strict=True)]
        self.optimizer = torch.optim.AdamW(groups)
        return self.optimizer


def _learning(model: Any) -> list[tuple[str, Any]]:
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def resized(dtype: torch.dtype) -> Any:
    """Return the tiny model with a larger vocabulary, filled up to a multiple of 64."""
    model = loaded(dtype)
    model.resize_token_embeddings(530, pad_to_multiple_of=64)
    return model


def adapted_by(config: Any) -> Callable[[torch.dtype], Any]:
    """Return what loads the tiny model with adapters of another kind than LoRA."""
    return lambda dtype: get_peft_model(loaded(dtype), config)


class Lion(torch.optim.Optimizer):
    """Keeps one average (arXiv 2302.06675)."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move each weight by the sign of a mean."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    average = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                    p.sub_(torch.sign(0.9 * average + 0.1 * p.grad), alpha=group["lr"])
                    average.lerp_(p.grad, 0.01)


class Sharpness(torch.optim.Optimizer):
    """SAM (arXiv 2010.01412) around another optimizer, which alone steps."""

    def __init__(self, parameters: Any, inner: type[torch.optim.Optimizer], **settings: Any) -> None:
        super().__init__(parameters, settings)
        self.inner = inner(self.param_groups, **settings)
        self.param_groups = self.inner.param_groups

    @torch.no_grad()
    def climb(self) -> None:
        """Go uphill, and clear."""
        held = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in held]).norm()
        for p in held:
            self.state[p]["before"] = p.clone()
            p.add_(p.grad, alpha=0.05 / float(norm))
        self.zero_grad()

    @torch.no_grad()
    def descend(self) -> None:
        """Go back, and step with the gradient of above."""
        for p, state in self.state.items():
            p.copy_(state.pop("before"))
        self.inner.step()
        self.zero_grad()


def sharpness_aware(script: Script, model: Any, batches: list[dict[str, torch.Tensor]]) -> None:
    """A loop of two passes a step."""
    held = Sharpness([p for _, p in _learning(model)], torch.optim.SGD, lr=0.05)
    for batch in batches[: script.steps]:
        for then in (held.climb, held.descend):
            model(**batch).loss.backward()
            then()


def noisy(script: Script, model: Any, batches: list[dict[str, torch.Tensor]]) -> None:
    """A loop that adds noise to its gradients (arXiv 1511.06807)."""
    held = torch.optim.SGD([p for _, p in _learning(model)], lr=0.05)
    for batch in batches[: script.steps]:
        model(**batch).loss.backward()
        for _, p in _learning(model):
            p.grad.add_(1e-3 * torch.randn_like(p))
        held.step()
        held.zero_grad()


def own_optimizer(kind: Callable[[Any], torch.optim.Optimizer]) -> Change:
    """Return a Trainer that is given an optimizer, and makes the schedule."""

    class Given(Trainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            groups = [{"params": [p]} for _, p in _learning(kwargs["model"])]
            super().__init__(*args, **{**kwargs, "optimizers": (kind(groups), None)})

    return fields(trainer=Given)


STRANGERS: dict[str, tuple[Change, ...]] = {
    "own smoothing": (fields(trainer=with_loss(smoothed)),),
    "rates by depth": (fields(lora=None, trainer=ByDepth),),
    "optimizer given with its rate": (own_optimizer(lambda groups: torch.optim.AdamW(groups, lr=3e-4)),),
    "Lion given": (own_optimizer(lambda groups: Lion(groups, {"lr": 1e-4})),),
    "vocabulary resized": (fields(lora=None, base=resized),),
    "vocabulary filled up, adapters": (fields(base=resized),),
    "IA3": (fields(lora=None, base=adapted_by(IA3Config(target_modules=["k_proj"], feedforward_modules=[]))),),
    "prompt tuning": (
        fields(lora=None, base=adapted_by(PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=6))),
    ),
    "loop, gradient noise": (fields(loop=noisy),),
    "loop, sharpness aware": (fields(loop=sharpness_aware),),
    "own module, row's last token": (scored(lambda mask: mask.sum(1) - 1),),
}
"""Name to what it changes of the plain script."""
