"""What well-known recipes do that is no mistake, each by the part of it that was once taken for one."""

from __future__ import annotations

import gc
from functools import partial
from types import SimpleNamespace

import pytest
import tiny
import torch
from in_process import train_here
from peft import AdaLoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from tunecheck.checks import CHECKS
from tunecheck.config import find_run, load_run
from tunecheck.core.evidence import BaseFidelity, RanksScored
from tunecheck.core.finding import Status
from tunecheck.core.premises import Premise, opened
from tunecheck.listen import provenance
from tunecheck.listen.adapters import Adapters, ranks_scored
from tunecheck.listen.batches import batch_of
from tunecheck.listen.loop_steps import cast_within
from tunecheck.listen.premises import of_adapters
from tunecheck.listen.trained_model import is_causal, trained_whole
from tunecheck.listen.user_code import user_modules
from tunecheck.probes.fidelity import _untied_head
from tunecheck.probes.reference.measures import live_tensors


@pytest.fixture
def model():
    """One layer, of random weights."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes))


class Passing(torch.nn.Module):
    """Passes its calls and every attribute on, as Lightning Fabric's module does."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def __getattr__(self, name):
        own = self.__dict__["_modules"]
        return own["inner"] if name == "inner" else getattr(own["inner"], name)

    def forward(self, *args, **kwargs):
        """Call it."""
        return self.inner(*args, **kwargs)


@pytest.mark.parametrize(("called", "scored"), [(True, 6), (False, 0)])
def test_an_allocator_that_is_called_has_scores(model, called, scored):
    """Of each of AdaLoRA's matrices; other adapters have no allocator."""
    settings = {"target_modules": ["q_proj", "v_proj"], "tinit": 1, "tfinal": 1, "total_step": 9}
    adapted = get_peft_model(model, AdaLoraConfig(**settings))
    ids = torch.arange(4)[None]
    adapted(input_ids=ids, labels=ids).loss.backward()
    if called:
        adapted.base_model.update_and_allocate(0)

    assert ranks_scored(adapted, 4) == RanksScored(steps=4, begins=1, scored=scored)
    assert ranks_scored(adapted, 8) is None  # in the last steps nothing is scored
    assert ranks_scored(model, 4) is None


def test_what_passes_attributes_on_is_not_the_model(model):
    """The model is the one inside, which is called by itself: what is entered on the way is known then."""
    assert Passing(model).get_output_embeddings() is not None
    assert not is_causal(Passing(model))
    assert is_causal(model)


def test_a_head_that_a_script_has_parted_from_its_embedding_is_the_embeddings(model):
    """A file holds one of a tied pair; whether they should be tied is a question of its own."""
    assert _untied_head(model) == {"lm_head.weight": "model.embed_tokens.weight"}
    assert _untied_head(model.model) == {}


def part_the_head(session, *, anew):
    """A fault: the head is no longer the embedding's tensor but a copy of it, or drawn anew."""
    head = session.model.get_output_embeddings()
    values = torch.randn_like(head.weight) if anew else head.weight.detach().clone()
    head.weight = torch.nn.Parameter(values, requires_grad=False)


@pytest.mark.parametrize(
    ("anew", "differing", "words"),
    [(False, (), "the head is not tied"), (True, ("lm_head.weight",), "1 of ")],
    ids=["a copy", "anew"],
)
def test_a_head_of_its_own_must_begin_as_the_embedding(tmp_path, anew, differing, words):
    """Of a tied pair the file has one tensor, which both are held to; this run's config has them tied. In fp32."""
    settings = [*tiny.TRAINED, "training.precision=fp32", "training.max_steps=2", "probes.oracle_steps=[]"]
    run = load_run(find_run("quick/smollm2-135m-qlora"), settings)
    trace = train_here(run, tmp_path, partial(part_the_head, anew=anew))

    finding = CHECKS["base_matches_file"]()(trace)

    assert trace.one(BaseFidelity).differing == differing
    assert finding.status is Status.FAILED
    assert words in finding.detail


def test_autocast_that_the_forward_enters_itself_is_seen(model):
    """As accelerate's mixed precision has it; nothing of the call is kept, the mode is put back."""
    ids = torch.arange(4)[None]
    batch = batch_of({"input_ids": ids, "labels": ids}, model.device)
    state = torch.random.get_rng_state()
    model.train()
    assert cast_within(model, batch) is None

    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)

    assert cast_within(model, batch) is torch.bfloat16
    assert model.training
    assert torch.equal(torch.random.get_rng_state(), state)


class Prompted(torch.nn.Module):
    """A learned prompt before a frozen model (arXiv 2104.08691)."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.prompt = torch.nn.Parameter(torch.zeros(2, 16))


def test_what_stands_around_a_frozen_model_and_learns_alone_is_what_is_trained(model):
    """Where the model inside learns, too, it is the one: it is called by itself."""
    prompted = Prompted(model)
    optimizer = torch.optim.AdamW([prompted.prompt])
    assert trained_whole(prompted) == (prompted, "")

    model.requires_grad_(True)
    optimizer.add_param_group({"params": list(model.parameters())})

    assert trained_whole(prompted) == (None, "the model inside the Prompted was not called")
    assert trained_whole(prompted, again=True) == (prompted, ""), "only its forward is"


def test_modules_that_the_script_puts_in_are_its_own(model):
    """Those of transformers and torch are not."""
    assert user_modules(model) == []
    layer = model.model.layers[0].self_attn
    layer.q_proj = Passing(layer.q_proj)
    assert user_modules(model) == ["Passing"]


def test_adalora_leaves_the_loss_unjudged():
    """It adds a penalty, and cuts ranks between the steps; LoRA does neither."""
    from peft import AdaLoraConfig, LoraConfig

    def left_open(config):
        held = Adapters({"default": config}, config, "", None)
        return opened(*of_adapters(None, SimpleNamespace(lora=None), held))

    for name in ("loss_oracle", "weights_change_only_in_steps"):
        assert not CHECKS[name].needs.isdisjoint(left_open(AdaLoraConfig(total_step=4)).keys())
    assert left_open(LoraConfig()) == {}


def test_loaded_adapters_of_parameters_are_not_fresh(model):
    """They are not enumerated either: neither reason hides the other."""
    config = SimpleNamespace(peft_type="LORA", target_parameters=["experts.down_proj"])
    provenance.LOADED.add(model)
    told = of_adapters(model, SimpleNamespace(lora=config), Adapters({"default": config}, config, "", None))
    assert opened(*told).keys() == {Premise.ADAPTERS_ENUMERATED, Premise.ADAPTERS_FRESH}


def test_tokens_that_a_data_set_keeps_are_no_leak():
    """A loss that is kept with its graph is."""
    gc.collect()
    before = live_tensors("cpu")[0]
    kept = [torch.arange(3) for _ in range(8)]
    assert live_tensors("cpu")[0] == before
    leaked = [torch.ones(3) for _ in range(8)]
    assert live_tensors("cpu")[0] == before + len(leaked) == before + len(kept)


def test_a_history_of_losses_is_no_leak():
    """As numbers; with their graphs, and as a view that keeps a whole tensor, it is."""
    gc.collect()
    before = live_tensors("cpu")[0]
    weight = torch.ones((), requires_grad=True)
    losses = [2 * weight for _ in range(8)]
    assert live_tensors("cpu")[0] == before + 9
    losses = [loss.detach() for loss in losses]
    losses += [torch.nn.functional.mse_loss(torch.ones(9), torch.zeros(9)) for _ in range(8)]
    assert live_tensors("cpu")[0] == before + 1
    losses += [torch.ones(1000)[0] for _ in range(8)]
    assert live_tensors("cpu")[0] == before + 9
    assert len(losses) == 24
