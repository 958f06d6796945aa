"""Comparisons at the seams: between steps, a linear's gradient, a call made again, merged weights, a loss's digits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from tunecheck.core.check import binary_digits
from tunecheck.core.evidence import Continuity, WeightGradient
from tunecheck.core.optimization import decays
from tunecheck.probes.gradients import WeightGradientProbe
from tunecheck.probes.movement import ContinuityProbe
from tunecheck.probes.reference.forwards import FirstCall
from tunecheck.runner import read_back
from tunecheck.training.hooks import Hooks
from tunecheck.training.ranks import Exchange


def session_of(model, max_steps=4, **more):
    """What these probes ask of a session."""
    training = SimpleNamespace(offload="none", max_steps=max_steps)
    return SimpleNamespace(
        model=model,
        run=SimpleNamespace(training=training, lora=None, holds=lambda _: True),
        scaler=None,
        exchange=Exchange(),
        **more,
    )


class Twice(torch.nn.Module):
    """Two linears of one input; the second's weight is frozen, its bias learns."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 5), torch.nn.Linear(6, 5)
        self.second.weight.requires_grad_(False)

    def forward(self, x):
        """Return a product of both."""
        return self.first(x) * self.second(x).tanh()


def gradients_seen(change=lambda model: None, dtype=torch.float32):
    """What the probe records of a window of two micro-batches, its gradients changed before the optimizer has them."""
    torch.manual_seed(0)
    model, seen = Twice().to(dtype), []
    probe, session = WeightGradientProbe(seen.append), session_of(model, max_steps=1)
    probe.start(session)
    probe.step_begin(session, 0, ())
    for tokens in (7, 3):
        model(torch.randn(2, tokens, 6, dtype=dtype)).float().square().sum().backward()
    change(model)
    probe.backward_end(session, 0)
    return seen


def test_a_linears_gradient_is_the_sum_of_products_over_the_window():
    """A frozen weight is not looked at, the bias beside it is."""
    (seen,) = gradients_seen()
    assert (seen.step, seen.linears, seen.dtypes) == (0, 2, ("float32",))
    assert seen.error < 1e-6


@pytest.mark.parametrize(
    ("change", "linear", "error"),
    [
        (lambda model: model.first.weight.grad.mul_(1.03), "first", 0.03),
        (lambda model: model.second.bias.grad.mul_(0.5), "second", 0.5),
        (lambda model: model.second.bias.grad.fill_(torch.nan), "second", torch.nan),
        (lambda model: setattr(model.first.weight, "grad", None), "first", 1.0),
    ],
)
def test_a_changed_gradient_is_told_by_how_much(change, linear, error):
    """In the linear whose it is."""
    (seen,) = gradients_seen(change)
    assert seen.worst == linear
    assert seen.error == pytest.approx(error, rel=1e-4, nan_ok=True)


def test_a_16_bit_linear_is_told_as_one():
    """Its gradient is rounded, and the record says in what."""
    (seen,) = gradients_seen(dtype=torch.bfloat16)
    assert seen.dtypes == ("bfloat16",)
    assert 0 < seen.error < 1e-2


def test_a_model_without_trained_linears_says_so():
    """A record of none, so that the check is not left without evidence."""
    seen = []
    probe, session = WeightGradientProbe(seen.append), session_of(torch.nn.Embedding(3, 2))
    probe.start(session)
    probe.step_begin(session, 0, ())
    probe.backward_end(session, 0)
    assert seen == [WeightGradient(step=0, linears=0, error=0.0, worst="", dtypes=())]


def test_a_bias_whose_gradient_is_what_rounding_leaves_of_nothing_is_healthy():
    """As that of the keys of attention is, of whose scores a softmax takes the differences alone."""
    torch.manual_seed(0)
    model, seen = torch.nn.Sequential(torch.nn.Linear(6, 5)), []
    probe, session = WeightGradientProbe(seen.append), session_of(model, max_steps=1)
    probe.start(session)
    probe.step_begin(session, 0, ())
    for tokens in (301, 203):
        (model(torch.randn(tokens, 6)).softmax(dim=0) * torch.randn(tokens, 5)).sum().backward()
    probe.backward_end(session, 0)

    assert model[0].bias.grad.norm() < 1e-6
    assert seen[0].error < 1e-4


PADDING = 1


class Tied(torch.nn.Module):
    """An embedding of twelve tokens and a head that shares its weight or, untied, has one of its own."""

    def __init__(self, tied=True):
        super().__init__()
        self.config = SimpleNamespace(pad_token_id=PADDING)
        self.embedding, self.head = torch.nn.Embedding(12, 6), torch.nn.Linear(6, 12, bias=False)
        self.get_input_embeddings, self.get_output_embeddings = lambda: self.embedding, lambda: self.head
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids):
        """Return logits."""
        return self.head(self.embedding(ids).tanh())


def embedding_seen(change=lambda model: None, **options):
    """What the probe records of a tied model's window of two micro-batches, the model changed beforehand."""
    torch.manual_seed(0)
    model, seen = Tied(**options), []
    change(model)
    session = session_of(model, max_steps=1, tokenizer=SimpleNamespace(all_special_ids=[2]))
    probe = WeightGradientProbe(seen.append)
    probe.start(session)
    probe.step_begin(session, 0, ())
    for tokens in (7, 5):
        model(torch.arange(2 * tokens).view(2, tokens) % 6).square().sum().backward()
    probe.backward_end(session, 0)
    return seen


@pytest.mark.parametrize("options", [{}, {"tied": False}], ids=["tied", "untied"])
@pytest.mark.parametrize(
    "change",
    [
        lambda model: None,
        lambda model: setattr(model.embedding, "padding_idx", PADDING),
        lambda model: setattr(model.embedding, "padding_idx", 2),
    ],
    ids=["plain", "padding", "the end token is padding"],
)
def test_an_embeddings_gradient_is_the_sum_over_its_look_ups_and_a_tied_heads_products(change, options):
    """Looking up a token that pads has no gradient, which is meant so."""
    (seen,) = embedding_seen(change, **options)
    assert (seen.linears, seen.dtypes) == (1 if not options else 2, ("float32",))
    assert seen.error < 1e-6


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.embedding.register_forward_hook(lambda _module, _args, out: out.detach()),
        lambda model: setattr(model.embedding, "scale_grad_by_freq", True),
        lambda model: setattr(model.embedding, "padding_idx", 5),
    ],
    ids=["cut", "divided by frequency", "a word is padding"],
)
def test_a_tied_embedding_whose_look_ups_are_not_learned_is_told(change):
    """Its gradient is not zero, and its weight moves: the head sees to that."""
    (seen,) = embedding_seen(change)
    assert (seen.worst, seen.error > 0.01) == ("embedding", True)


def test_an_embedding_is_not_followed_whose_head_is_no_call_of_a_module():
    """A fused loss multiplies by the weight where nothing is seen."""

    def fuse(model):
        model.forward = lambda ids: model.embedding(ids).tanh() @ model.embedding.weight.T

    (seen,) = embedding_seen(fuse)
    assert (seen.linears, seen.error) == (0, 0.0)


def continuity(changes, steps=3):
    """What the probe records of a run whose tensors are changed at these moments, the optimizer's apart."""
    torch.manual_seed(0)
    model, seen = Twice(), []
    probe, session = ContinuityProbe(seen.append), session_of(model, max_steps=steps)
    probe.start(session)
    for step in range(steps):
        with torch.no_grad():
            changes.get(("between", step), lambda model: None)(model)
        probe.step_begin(session, step, ())
        with torch.no_grad():
            changes.get(("within", step), lambda model: None)(model)
        probe.backward_end(session, step)
        with torch.no_grad():
            model.first.weight.add_(0.1)
        probe.step_end(session, step, True)
    with torch.no_grad():
        changes.get(("between", steps), lambda model: None)(model)
    probe.end(session)
    (record,) = seen
    return record


def test_what_the_optimizer_changes_is_no_change_between_steps():
    """Two comparisons a step and one at the end."""
    assert continuity({}) == Continuity(moments=7, trained=3, frozen=1, trained_changed={}, frozen_changed={})


@pytest.mark.parametrize(("moment", "step"), [("between", 0), ("within", 1), ("between", 2), ("between", 3)])
def test_a_change_outside_of_the_optimizers_step_is_told_with_its_step(moment, step):
    """Before, within or after."""
    seen = continuity({(moment, step): lambda model: model.first.weight.mul_(1.001)})
    assert seen.trained_changed == {"first.weight": step}


def test_a_frozen_tensor_that_is_right_again_at_the_end_is_told():
    """The digests of start and end would be equal."""
    changes = {("between", 1): lambda m: m.second.weight.mul_(2), ("between", 2): lambda m: m.second.weight.div_(2)}
    assert continuity(changes).frozen_changed == {"second.weight": 1}


class Decoder(torch.nn.Module):
    """A decoder that may be told to add noise, or to return the like of what transformers' do."""

    def __init__(self):
        super().__init__()
        self.linear, self.noise = torch.nn.Linear(4, 4), 0.0

    def get_decoder(self):
        """Return itself."""
        return self

    def forward(self, *, x):
        """Return hidden states."""
        return SimpleNamespace(last_hidden_state=self.linear(x) + self.noise * torch.randn(1))


def test_a_call_is_made_again_in_its_own_mode():
    """The same bits, unless the model is another one or random by then; the mode is as it was afterwards."""
    model = Decoder()
    for change, same in ((lambda: None, True), (lambda: setattr(model, "noise", 1e-3), False)):
        with Hooks() as hooks, torch.no_grad():
            call = FirstCall(model, hooks)
            model.eval()(x=torch.ones(2, 4))
            model(x=torch.zeros(2, 4))
        model.train()
        change()
        assert call.repeats(model) is same
        assert model.training
    with Hooks() as hooks:
        assert FirstCall(model, hooks).repeats(model) is None


def merged_share(folder, change=lambda weight, delta: weight + delta, dtype=torch.bfloat16, size=1e-2):
    """The share of a random adapter in weights merged by this function."""
    torch.manual_seed(0)
    lora = SimpleNamespace(scale_of=lambda module: 2.0, use_dora=False)
    weight, a, b = torch.randn(96, 64).to(dtype), torch.randn(4, 64), size * torch.randn(96, 4)
    save_file(
        {"base_model.model.q.lora_A.weight": a, "base_model.model.q.lora_B.weight": b},
        folder / "adapter_model.safetensors",
    )

    def holding(matrix):
        linear = torch.nn.Linear(64, 96, bias=False)
        linear.weight = torch.nn.Parameter(matrix, requires_grad=False)
        return linear

    adapted = torch.nn.Module()
    adapted.q = torch.nn.Module()
    adapted.q.base_layer, adapted.q.lora_A = holding(weight), torch.nn.Linear(1, 1)
    outer = torch.nn.ModuleDict({"base_model": torch.nn.ModuleDict({"model": adapted})})
    before = read_back.adapted_rows(outer)
    model = torch.nn.ModuleDict({"q": holding(change(weight.float(), 2.0 * b @ a).to(dtype))})
    return read_back.merged_share(before, model, folder, lora)


def test_a_merge_in_16_bit_that_rounds_as_ours_holds_all_of_the_adapter(tmp_path):
    """However little of it the dtype can hold; a transposed or weaker one does not."""
    for size in (1e-2, 1e-4):
        share, name = merged_share(tmp_path, size=size)
        assert (share, name) == (pytest.approx(1.0, abs=1e-6), "q")
    assert merged_share(tmp_path, lambda weight, delta: weight)[0] == 0.0
    assert merged_share(tmp_path, lambda weight, delta: weight + 0.9 * delta)[0] == pytest.approx(0.9, abs=0.02)
    assert merged_share(tmp_path, lambda weight, delta: weight + 2 * delta, torch.float32)[0] == pytest.approx(2)


@pytest.mark.parametrize(
    ("value", "digits"), [(1.0, 1), (1.5, 2), (2.359375, 8), (0.1, 52), (float("nan"), 53), (0.0, 53), (-3.0, 2)]
)
def testbinary_digits_of_a_number(value, digits):
    """Those that its mantissa needs."""
    assert binary_digits(value) == digits


@pytest.mark.parametrize(
    ("name", "apart"),
    [
        ("model.layers.0.input_layernorm.weight", True),
        ("model.norm.weight", True),
        ("model.layers.0.self_attn.q_norm.weight", True),
        ("bert.encoder.layer.0.output.LayerNorm.weight", True),
        ("transformer.h.0.ln_1.weight", True),
        ("model.layers.0.self_attn.q_proj.bias", True),
        ("model.layers.0.self_attn.q_proj.weight", False),
        ("base_model.model.model.layers.0.mlp.up_proj.lora_magnitude_vector.default.weight", False),
    ],
)
def test_norms_and_biases_are_known_by_their_names(name, apart):
    """A magnitude of DoRA is neither."""
    assert decays(name, "all")
    assert decays(name, "all_but_norms_and_biases") is not apart
