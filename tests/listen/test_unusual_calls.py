"""What scripts do beside the usual: embeddings of their own, hooks on gradients, rates without a number. CPU, fp32."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.utils.prune
from torch.nn.functional import cross_entropy
from transformers import Adafactor

from benchmarks.scripts.script import Script, judged, plain_loop
from tunecheck.listen import provenance

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own
SHORT = {"steps": 4, "rows": 20, "lora": None}


def with_noise(model, batch):
    """NEFTune (arXiv 2310.05914) by hand: what the model gets is no row that anybody could make again."""
    held = model.get_input_embeddings()(batch["input_ids"])
    return model(inputs_embeds=held + torch.randn_like(held), labels=batch["labels"]).loss


def in_chunks(model, batch):
    """The decoder once, and the head for one part of the positions after the other."""
    hidden = model.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    parts = zip(hidden[:, :-1].split(8, dim=1), batch["labels"][:, 1:].split(8, dim=1), strict=True)
    sums = [
        cross_entropy(model.lm_head(part).flatten(0, 1), wanted.flatten(), reduction="sum") for part, wanted in parts
    ]
    return sum(sums) / (batch["labels"][:, 1:] >= 0).sum()


def by_name(model, batch):
    """The decoder, and the head by the name of its argument."""
    hidden = model.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    logits = model.lm_head(input=hidden)
    return cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


def from_a_cache(model, batch):
    """The second half of each row after the keys and values of the first one, as of a truncated backpropagation."""
    half = batch["input_ids"].shape[1] // 2
    first, second = batch["input_ids"][:, :half], batch["input_ids"][:, half:]
    cache = model(input_ids=first, use_cache=True).past_key_values
    return model(input_ids=second, past_key_values=cache, labels=batch["labels"][:, half:]).loss


def centred(model):
    """An optimizer of gradients without their means (arXiv 2004.01461), as hooks of tensors take them off."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.register_hook(lambda gradient: gradient - gradient.mean(dim=1, keepdim=True))
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


class Rounded(torch.nn.Linear):
    """Computes with its weights in 8 bits, and learns those in 32."""

    def forward(self, given):
        """Pass the gradient straight through."""
        step = self.weight.abs().max() / 127
        rounded = self.weight + ((self.weight / step).round() * step - self.weight).detach()
        return torch.nn.functional.linear(given, rounded, self.bias)


def rounds(model):
    """Quantisation-aware training: a class of the script's own takes a linear's place."""
    for layer in model.model.layers:
        own = Rounded(layer.mlp.up_proj.in_features, layer.mlp.up_proj.out_features, bias=False)
        own.weight = layer.mlp.up_proj.weight
        layer.mlp.up_proj = own
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def pruned(model):
    """The weight of each pass is made of another tensor and a mask."""
    for layer in model.model.layers:
        torch.nn.utils.prune.l1_unstructured(layer.mlp.up_proj, "weight", 0.3)
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


CASES = {
    "weights rounded by a class of the script's": {"optimizer": rounds},
    "weights pruned": {"optimizer": pruned},
    "embeddings with noise": {"loss": with_noise},
    "rows that go on from a cache": {"loss": from_a_cache},
    "a head called for each part of the positions": {"loss": in_chunks},
    "a head called by name": {"loss": by_name},
    "gradients edited by hooks": {"optimizer": centred},
    "a rate in a tensor": {"optimizer": lambda model: torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3))},
    "a rate of its own": {"optimizer": lambda model: Adafactor(model.parameters(), relative_step=True, lr=None)},
}


@pytest.mark.parametrize("case", CASES)
def test_a_loop_is_heard_to_its_end_and_passes(case, tmp_path):
    """Nothing is flagged, and no probe ends."""
    row = judged(Script(**SHORT, loop=lambda *given: plain_loop(*given, **CASES[case])), tmp_path)

    assert [finding.detail for finding in (*row.failed, *row.suspected)] == []
    assert row.outcome == "pass", row.reason
    assert not [finding.detail for finding in row.unjudged if "failed at" in finding.detail]


def weighing(how):
    """Return a loop that differentiates two micro-batches a step, each with a factor that this returns."""

    def loop(script, model, batches):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step in range(script.steps):
            window = [batches[step], {name: part[:1] for name, part in batches[step + 1].items()}]
            tokens = [int((batch["labels"][:, 1:] >= 0).sum()) for batch in window]
            for batch, factor in zip(window, how(tokens), strict=True):
                (factor * model(**batch).loss).backward()
            optimizer.step()
            optimizer.zero_grad()

    return loop


@pytest.mark.parametrize(
    ("how", "asked"),
    [
        (lambda tokens: [0.5, 0.5], "accumulation_oracle"),
        (lambda tokens: [count / sum(tokens) for count in tokens], ""),
        (lambda tokens: [1.0, 0.5], "loss_normalised_over_accumulation"),
    ],
    ids=["alike", "by their tokens", "otherwise"],
)
def test_losses_of_micro_batches_that_count_differently(how, asked, tmp_path):
    """A loop that mixes two kinds of rows may mean that; it is no wrong mean."""
    row = judged(Script(**SHORT, loop=weighing(how)), tmp_path)

    assert [finding.detail for finding in row.failed] == []
    assert [finding.check for finding in row.suspected] == [asked] * bool(asked)


def test_a_base_into_which_adapters_were_merged_is_not_that_of_its_file():
    """Those that learned in an earlier training of this process, or come from a file."""
    model, _ = Script(steps=1).model_and_tokenizer()
    provenance.merging(model.base_model)
    assert not provenance.trained_before(copy.deepcopy(model), adapters=False)

    assert provenance.trained_before(model.merge_and_unload(), adapters=False)
