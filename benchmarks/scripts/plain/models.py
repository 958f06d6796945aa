"""Small models as people write them by hand, and the batches that they are given. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, WIDTH, TOKENS = 64, 32, 24


def token_batches(count: int, rows: int = 4) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield random tokens, and those that follow them."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        ids = torch.randint(0, VOCABULARY, (rows, TOKENS + 1), generator=generator)
        yield ids[:, :-1], ids[:, 1:]


def pictures(count: int, rows: int = 8) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield random pictures, and a class of each."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(rows, 3, 8, 8, generator=generator), torch.randint(0, 4, (rows,), generator=generator)


@dataclass
class GPTConfig:
    """nanoGPT keeps one of its own, too."""

    n_layer: int = 2
    n_head: int = 4
    dropout: float = 0.0


class Block(nn.Module):
    """Attention and an MLP, each after a norm."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads, self.dropout, self.causal = config.n_head, config.dropout, True
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(config.dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the hidden states behind this block."""
        rows, tokens, width = x.shape
        q, k, v = (
            part.view(rows, tokens, self.heads, -1).transpose(1, 2)
            for part in self.c_attn(self.ln_1(x)).split(width, dim=2)
        )
        dropped = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=dropped)
        x = x + self.c_proj(mixed.transpose(1, 2).reshape(rows, tokens, width))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class GPT(nn.Module):
    """A decoder as nanoGPT has it: its own config, a tied head, logits and loss in a tuple."""

    def __init__(self, config: GPTConfig | None = None) -> None:
        super().__init__()
        self.config = config or GPTConfig()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(2 * TOKENS, WIDTH)
        self.h = nn.ModuleList(Block(self.config) for _ in range(self.config.n_layer))
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight
        nn.init.normal_(self.wte.weight, std=0.02)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return logits, and the loss where there are targets."""
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        if targets is None:
            return logits, None
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def groups(self, decay: float = 0.1) -> list[dict[str, Any]]:
        """Return its matrices, which decay, and the rest, which does not."""
        matrices = [p for p in self.parameters() if p.dim() > 1]
        rest = [p for p in self.parameters() if p.dim() < 2]
        return [{"params": matrices, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]


class Recurrent(nn.Module):
    """An LSTM over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(VOCABULARY, WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.head(self.rnn(self.embedding(ids))[0])
        return logits


class Pictures(nn.Module):
    """Convolutions with biases before batch normalisation, whose gradient is rounding alone."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1), nn.Conv2d(8, 8, 3)),
            *(nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of the classes."""
        scores: Tensor = self.head(self.backbone(x))
        return scores


class LoraLinear(nn.Module):
    """A frozen linear and a product of rank 2, as written by hand."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, base.in_features) / math.sqrt(base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both."""
        out: Tensor = self.base(x) + 2.0 * (x @ self.a.T @ self.b.T)
        return out


def with_lora(model: GPT) -> GPT:
    """Freeze the model and give its attention adapters."""
    model.requires_grad_(False)
    blocks: Any = model.h
    for block in blocks:
        block.c_attn, block.c_proj = LoraLinear(block.c_attn), LoraLinear(block.c_proj)
    return model


class Towers(nn.Module):
    """Two encoders that are trained to agree."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)) for _ in range(2))
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the similarity of every pair."""
        left, right = functional.normalize(self.left(x), dim=-1), functional.normalize(self.right(y), dim=-1)
        return left @ right.T * self.temperature.exp()


class Lion(torch.optim.Optimizer):
    """The sign of an average (arXiv 2302.06675)."""

    def __init__(self, params: Any, lr: float = 1e-4) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move every tensor by the rate, up or down."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    average = self.state[p].setdefault("average", torch.zeros_like(p))
                    p.sub_(torch.sign(0.9 * average + 0.1 * p.grad), alpha=group["lr"])
                    average.lerp_(p.grad, 0.01)


class Muon(torch.optim.Optimizer):
    """Matrices by the orthogonal factor of their average, by five steps of Newton and Schulz."""

    def __init__(self, params: Any, lr: float = 0.02) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move every matrix."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("average", torch.zeros_like(p)).mul_(0.95).add_(p.grad)
                x = average / (average.norm() + 1e-7)
                for _ in range(5):
                    square = x @ x.T
                    x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
                p.sub_(x, alpha=group["lr"])
