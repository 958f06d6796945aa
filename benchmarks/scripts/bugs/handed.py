"""Mistakes in what a training is handed: its state, its workers' batches, the scores of its loss, its own targets."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, IterableDataset
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.scripts.bugs.alone import adamw, mistake_alone
from benchmarks.scripts.bugs.mistake import in_a_loop, mistake
from benchmarks.scripts.plain.models import GPT, VOCABULARY, Recurrent, token_batches
from benchmarks.scripts.script import IGNORED, Script


@mistake_alone("state_dict_keys_match")
def state_of_a_wrapper(steps: int) -> None:
    """A checkpoint of a wrapped model is loaded with strict=False, which takes nothing of it."""
    model = GPT()
    state = {f"module.{name}": tensor for name, tensor in copy.deepcopy(GPT().state_dict()).items()}
    model.load_state_dict(state, strict=False)
    optimizer = adamw(model)
    for batch in token_batches(steps):
        optimizer.zero_grad()
        model(*batch)[1].backward()
        optimizer.step()


@mistake_alone("loss_receives_logits")
def softmax_before_the_loss(steps: int) -> None:
    """The model ends in a softmax, and cross_entropy takes another one."""
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50), nn.Softmax(dim=-1))
    optimizer = adamw(model)
    for ids, targets in token_batches(steps):
        optimizer.zero_grad()
        loss = cross_entropy(model(ids % 50).flatten(0, 1), targets.flatten() % 50)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@mistake("loss_receives_logits")
def loop_entropy_of_probabilities(script: Script) -> None:
    """A loop takes the softmax of the logits before it hands them to cross_entropy."""

    def loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
        likely = model(**{**batch, "labels": None}).logits[:, :-1].float().softmax(dim=-1)
        return cross_entropy(likely.flatten(0, 1), batch["labels"][:, 1:].flatten(), ignore_index=IGNORED)

    in_a_loop(loss=loss)(script)


class _Rows(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for ids, targets in token_batches(32, rows=1):
            yield ids[0], targets[0]


@mistake_alone("workers_differ")
def rows_from_every_worker(steps: int) -> None:
    """Each of two workers iterates over all rows of a data set."""
    model = GPT()
    optimizer = adamw(model)
    for _, batch in zip(range(steps), DataLoader(_Rows(), batch_size=2, num_workers=2), strict=False):
        optimizer.zero_grad()
        model(*batch)[1].backward()
        optimizer.step()


@mistake_alone("no_loss_on_padding")
def padding_without_a_mask(steps: int) -> None:
    """A collator pads tokens and labels alike, and hands on no mask."""
    settings: Any = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, pad_token_id=0, **settings))
    optimizer = adamw(model)
    for number, (ids, _) in enumerate(token_batches(steps)):
        for row in range(len(ids)):
            ids[row, ids.shape[1] - 3 * ((row + number) % 4) :] = 0
        optimizer.zero_grad()
        logits = model(input_ids=ids).logits[:, :-1]
        cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@mistake_alone("no_target_leakage")
def mask_not_causal(steps: int) -> None:
    """The attention of a decoder of the script's own lacks its causal mask."""
    model = GPT()
    first: Any = model.h[0]
    first.causal = False
    optimizer = adamw(model)
    for batch in token_batches(steps):
        optimizer.zero_grad()
        model(*batch)[1].backward()
        optimizer.step()


@mistake_alone("no_target_leakage")
def mean_over_all_positions(steps: int) -> None:
    """A recurrent model adds the mean of a row's embeddings at each position: those of what it is to predict, too."""
    model = Recurrent()
    model.embedding.register_forward_hook(lambda module, args, out: out + out.mean(dim=1, keepdim=True))
    optimizer = adamw(model)
    for ids, targets in token_batches(steps):
        optimizer.zero_grad()
        cross_entropy(model(ids).flatten(0, 1), targets.flatten()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
