"""What nearly every training does: fp16 is scaled, new heads learn, orders change. Trainings on a CPU."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss, nll_loss
from torch.utils.data import DataLoader, TensorDataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from benchmarks.scripts.script import MODEL
from tunecheck.checks import CHECKS
from tunecheck.core.finding import Status
from tunecheck.core.trace import read
from tunecheck.listen import loaders
from tunecheck.listen.imports import hear
from tunecheck.listen.loop import LoopHooks
from tunecheck.listen.options import Options

WIDTH, ROWS, STEPS = 8, 48, 6


@pytest.fixture
def heard(tmp_path):
    """Return what trains under watch, and then gives the finding of a check."""
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=STEPS))

    def judged(check, train):
        hooks.attach()
        train()
        hooks.detach()
        (path,) = tmp_path.glob("watch-*.jsonl")
        return CHECKS[check]()(read(path))

    with hear(torch):
        yield judged
    loaders._OF_ONE.clear()


class Net(nn.Module):
    """A body under a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.drop, self.head = nn.Linear(WIDTH, 32), nn.Dropout(0.2), nn.Linear(32, 3)

    def forward(self, x):
        """Return scores of three classes."""
        return self.head(self.drop(torch.relu(self.body(x))))


def data(rows=ROWS):
    """Rows of three classes."""
    return TensorDataset(torch.randn(rows, WIDTH), torch.arange(rows) % 3)


def steps(model, batches, *, loss=lambda model, x, y: cross_entropy(model(x), y), after=lambda number: None):
    """Train on these batches."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for number, batch in enumerate(batches):
        loss(model, *batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        after(number)


def causal(**settings):
    """A small language model."""
    shape = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 64}
    return LlamaForCausalLM(LlamaConfig(**{"hidden_size": 16, **shape, **settings}))


@pytest.mark.parametrize(
    ("dtype", "size", "status"),
    [
        (torch.float16, 1e-3, Status.SUSPECTED),
        (torch.float16, 1.0, Status.PASSED),
        (torch.bfloat16, 1e-3, Status.UNJUDGED),
    ],
    ids=["small", "large", "bf16"],
)
def test_gradients_in_fp16_are_scaled(dtype, size, status, heard):
    """Where they are small: below the smallest normal number they lose digits."""

    def loss(model, x, y):
        with torch.autocast("cpu", dtype=dtype):
            return size * cross_entropy(model(x), y)

    finding = heard("fp16_gradients_scaled", lambda: steps(Net(), DataLoader(data(), 8), loss=loss))
    assert finding.status is status, finding.detail


@pytest.mark.parametrize("how", ["head", "trained head", "body", "copy"])
def test_a_matrix_as_it_was_drawn_learns(how, heard):
    """One that was trained before, or that follows another one, may well be frozen."""
    model = Net()
    if how == "trained head":
        with torch.no_grad():
            model.head.weight.normal_(0, 0.3)
    if how == "copy":
        model.target = nn.Linear(WIDTH, 32)
        model.target.load_state_dict(model.body.state_dict())
    frozen = {"body": model.body, "copy": getattr(model, "target", None)}.get(how, model.head)
    frozen.requires_grad_(False)

    finding = heard("usual_tensors_learn", lambda: steps(model, DataLoader(data(), 8)))
    assert finding.status is (Status.SUSPECTED if how in ("head", "body") else Status.PASSED), finding.detail


class Wrapper(nn.Module):
    """A model within another one, as in Lightning's modules."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, **given):
        """Call it."""
        return self.inner(**given)


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("way", ["itself", "wrapped", "no file", "saved with its head", "copied by peft"])
def test_a_head_that_no_file_has_learns(way, frozen, heard, tmp_path):
    """Beside a layer that is thawed."""
    settings = {"dtype": torch.float32, "pad_token_id": 0, "num_labels": 3}
    model = AutoModelForSequenceClassification.from_pretrained(MODEL, **settings)
    if way == "saved with its head":
        model.save_pretrained(tmp_path / "saved")
        model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved", **settings)
    if way == "no file":
        model.config._name_or_path = ""
    if way == "copied by peft":
        model = get_peft_model(
            model, LoraConfig(target_modules=["q_proj"], layers_to_transform=[1], modules_to_save=["score"])
        )
    model = Wrapper(model) if way == "wrapped" else model
    for name, parameter in model.named_parameters():
        inner = "layers.1" in name and "base_layer" not in name
        parameter.requires_grad = inner or ("score" in name and not frozen)
    rows = [(torch.randint(1, 500, (4, 9)), torch.arange(4) % 3) for _ in range(STEPS)]

    train = lambda: steps(model, rows, loss=lambda model, ids, y: model(input_ids=ids, labels=y).loss)  # noqa: E731
    asked = frozen and way != "saved with its head"
    finding = heard("usual_tensors_learn", train)
    assert finding.status is (Status.SUSPECTED if asked else Status.PASSED), finding.detail


@pytest.mark.parametrize("how", ["frozen", "thawed", "in the file", "body copied", "no classifier"])
def test_a_pooler_that_no_file_has_learns(how, heard, tmp_path):
    """It lies in the frozen body, and is drawn as the head is. Who uses the body alone may do without it.

    That the head alone learns is a question of its own, unless the script freezes the whole of a part of its model.
    """
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    source = (BertForSequenceClassification if how == "in the file" else BertForMaskedLM)(BertConfig(**shape))
    for parameter in source.parameters():
        nn.init.normal_(parameter)
    source.save_pretrained(tmp_path / "saved")
    model = BertForSequenceClassification.from_pretrained(tmp_path / "saved")
    if how == "body copied":
        source = BertForSequenceClassification(model.config)
        nn.init.normal_(source.bert.pooler.dense.bias)
        model.bert = copy.deepcopy(source.bert)
    model.bert.requires_grad_(False)
    model.bert.pooler.requires_grad_(how == "thawed")
    if how == "no classifier":
        model = nn.ModuleDict({"body": BertModel.from_pretrained(tmp_path / "saved"), "head": nn.Linear(16, 2)})
        model["body"].requires_grad_(False)
        model.forward = lambda input_ids, labels: SimpleNamespace(
            loss=cross_entropy(model["head"](model["body"](input_ids).last_hidden_state[:, 0]), labels)
        )
    rows = [(torch.randint(1, 500, (4, 9)), torch.arange(4) % 2) for _ in range(STEPS)]

    train = lambda: steps(model, rows, loss=lambda model, ids, y: model(input_ids=ids, labels=y).loss)  # noqa: E731
    finding = heard("usual_tensors_learn", train)
    meant = how in ("thawed", "no classifier")
    assert finding.status is (Status.PASSED if meant else Status.SUSPECTED), finding.detail
    assert ("of the layers is trained" in finding.detail) is not meant
    assert ("bert.pooler.dense.weight" in finding.detail) is (how == "frozen")


@pytest.mark.parametrize("learns", ["classifier", "layer.1", "LayerNorm.bias", "encoder"])
def test_an_encoder_learns_in_its_layers(learns, heard):
    """A head alone may be meant; biases alone are one way to train it."""
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(**shape))
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter)
        parameter.requires_grad = "classifier" in name or learns in name
    rows = [(torch.randint(1, 500, (4, 9)), torch.arange(4) % 2) for _ in range(STEPS)]

    train = lambda: steps(model, rows, loss=lambda model, ids, y: model(input_ids=ids, labels=y).loss)  # noqa: E731
    finding = heard("usual_tensors_learn", train)
    assert finding.status is (Status.SUSPECTED if learns == "classifier" else Status.PASSED), finding.detail


@pytest.mark.parametrize(
    ("learns", "status"),
    [
        *(("norm", Status.SUSPECTED), ("embed", Status.SUSPECTED)),
        *(("bias", Status.PASSED), ("layers.1", Status.PASSED), ("", Status.PASSED)),
    ],
)
def test_a_language_model_learns_in_its_layers(learns, status, heard):
    """Norms alone, or what stands around the layers, may be meant."""
    model = causal(attention_bias=True)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = learns in name
    rows = [(torch.randint(1, 60, (4, 9)),) for _ in range(STEPS)]

    train = lambda: steps(model, rows, loss=lambda model, ids: model(input_ids=ids, labels=ids).loss)  # noqa: E731
    assert heard("usual_tensors_learn", train).status is status


@pytest.mark.parametrize(
    ("names", "status"),
    [
        (["lm_head"], Status.SUSPECTED),
        (["embed_tokens"], Status.PASSED),
        (["q_proj"], Status.PASSED),
        (["lm_head", "down_proj"], Status.PASSED),
    ],
)
def test_adapters_lie_before_the_head(names, status, heard):
    """Names that match the head alone train no layer."""
    model = get_peft_model(causal(tie_word_embeddings=False), LoraConfig(task_type="CAUSAL_LM", target_modules=names))
    rows = [(torch.randint(1, 60, (4, 9)),) for _ in range(STEPS)]

    train = lambda: steps(model, rows, loss=lambda model, ids: model(input_ids=ids, labels=ids).loss)  # noqa: E731
    assert heard("usual_tensors_learn", train).status is status


@pytest.mark.parametrize(("frozen", "status"), [(slice(2), Status.PASSED), (slice(1, None), Status.SUSPECTED)])
def test_the_last_layers_learn_rather_than_the_first(frozen, status, heard):
    """Features of the first ones are those that fit many tasks."""
    model = causal(num_hidden_layers=3)
    for layer in model.model.layers[frozen]:
        layer.requires_grad_(False)
    rows = [(torch.randint(1, 60, (4, 9)),) for _ in range(STEPS)]

    train = lambda: steps(model, rows, loss=lambda model, ids: model(input_ids=ids, labels=ids).loss)  # noqa: E731
    finding = heard("usual_tensors_learn", train)
    assert finding.status is status, finding.detail
    assert ("2 of 3 layers of model.layers" in finding.detail) is (status is Status.SUSPECTED)


class Forwarding(nn.Module):
    """A head of its own over a model, whose other attributes it has, too, but for the head."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.get_base_model = inner, inner.get_base_model

    def forward(self, ids):
        """Return the model's scores."""
        return self.inner(input_ids=ids).logits


def test_a_wrapper_need_not_name_its_output_layer(heard):
    """As TRL's of a model with a value head."""
    model = Forwarding(get_peft_model(causal(), LoraConfig(target_modules=["q_proj"])))
    rows = [(torch.randint(1, 60, (4, 9)),) for _ in range(STEPS)]

    loss = lambda model, ids: cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())  # noqa: E731
    assert heard("usual_tensors_learn", lambda: steps(model, rows, loss=loss)).status is Status.PASSED


class Seeing(LlamaForCausalLM):
    """A language model that reads a picture before its tokens."""

    def forward(self, input_ids, labels=None, pixel_values=None):
        """Add the picture to the first embedding."""
        embeddings = self.get_input_embeddings()(input_ids)
        first = embeddings[:, :1] + pixel_values[:, None]
        return super().forward(inputs_embeds=torch.cat([first, embeddings[:, 1:]], dim=1), labels=labels)


@pytest.mark.parametrize("check", ["loss_oracle", "accumulation_oracle", "labels_as_configured"])
def test_a_model_that_is_given_a_picture_cannot_be_called_again(check, heard):
    """Without it, that is; in a plain loop."""
    model = Seeing(causal().config)
    rows = [(torch.randint(1, 60, (4, 9)), torch.randn(4, model.config.hidden_size)) for _ in range(STEPS)]
    loss = lambda model, ids, seen: model(ids, labels=ids, pixel_values=seen).loss  # noqa: E731

    finding = heard(check, lambda: steps(model, rows, loss=loss))
    assert finding.status is Status.UNJUDGED
    assert "the model receives pixel_values besides tokens" in finding.detail


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("check", "shift", "status"),
    [
        *(("labels_as_configured", 1, Status.PASSED), ("labels_as_configured", 0, Status.FAILED)),
        *(("no_target_leakage", 0, Status.FAILED), ("no_target_leakage", 2, Status.SUSPECTED)),
        *(("no_target_leakage", 1, Status.PASSED), ("weight_gradients", 1, Status.PASSED)),
    ],
)
def test_a_forward_that_is_called_by_name_is_the_models(check, shift, status, tied, heard):
    """Its hooks are passed over, and its decoder is the first module that is called."""
    model = causal(tie_word_embeddings=tied)
    rows = [(torch.randint(1, 60, (4, 24)),) for _ in range(STEPS)]

    def loss(model, ids):
        logits = model.forward(input_ids=ids).logits
        return cross_entropy(logits[:, : 24 - shift].flatten(0, 1), ids[:, shift:].flatten())

    finding = heard(check, lambda: steps(model, rows, loss=loss))
    assert finding.status is status, finding.detail


@pytest.mark.parametrize("made", ["once", "each epoch"])
@pytest.mark.parametrize("seeded", [True, False])
def test_each_epoch_has_an_order_of_its_own(made, seeded, heard):
    """The loader may be made anew for each."""
    rows, model = data(32), Net()

    def shuffled():
        return DataLoader(rows, 8, shuffle=True)

    def batches():
        loader = shuffled()
        for _ in range(3):
            if seeded:
                torch.manual_seed(3)
            yield from loader if made == "once" else shuffled()

    finding = heard("epochs_shuffled", lambda: steps(model, batches()))
    assert finding.status is (Status.SUSPECTED if seeded else Status.PASSED), finding.detail


@pytest.mark.parametrize("restored", [True, False])
def test_a_sharpness_aware_step_restores_its_weights(restored, heard):
    """Before the optimizer steps."""
    model = Net()

    def loss(model, x, y):
        cross_entropy(model(x), y).backward()
        moves = [0.1 * p.grad for p in model.parameters()]
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves, strict=True):
                p.add_(move)
        model.zero_grad()
        found = cross_entropy(model(x), y)
        if restored:
            found.backward()
            with torch.no_grad():
                for p, move in zip(model.parameters(), moves, strict=True):
                    p.sub_(move)
        return found.detach().requires_grad_() if restored else found

    finding = heard("calls_in_order", lambda: steps(model, DataLoader(data(), 8), loss=loss))
    assert finding.status is (Status.PASSED if restored else Status.SUSPECTED), finding.detail


class Tagger(nn.Module):
    """Scores of five classes at each of seven places."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 5)

    def forward(self, x):
        """Return them, classes last."""
        return self.layer(x)


def places():
    """Rows of seven places, and a class of each."""
    return [(torch.randn(4, 7, WIDTH), torch.randint(0, 5, (4, 7))) for _ in range(STEPS)]


@pytest.mark.parametrize("how", ["view", "transpose"])
def test_classes_are_exchanged_with_places_by_a_transpose(how, heard):
    """A view takes the scores of one place for those of others."""

    def loss(model, x, y):
        scores = model(x)
        return cross_entropy(scores.view(4, 5, 7) if how == "view" else scores.transpose(1, 2), y)

    finding = heard("loss_receives_logits", lambda: steps(Tagger(), places(), loss=loss))
    assert finding.status is (Status.SUSPECTED if how == "view" else Status.PASSED), finding.detail


@pytest.mark.parametrize("axis", [0, 1, -2, -1])
def test_a_softmax_is_taken_over_the_classes(axis, heard):
    """Not over the rows."""

    def loss(model, x, y):
        return nll_loss(model(x).log_softmax(dim=axis), y)

    finding = heard("loss_receives_logits", lambda: steps(Net(), DataLoader(data(), 8), loss=loss))
    assert finding.status is (Status.PASSED if axis in (1, -1) else Status.SUSPECTED), finding.detail


@pytest.mark.parametrize(
    ("scale", "status"), [(5.0, Status.FAILED), (1.0, Status.PASSED)], ids=["ratings", "shares of the best"]
)
def test_ratings_are_scaled_to_the_range_of_the_output(scale, status, heard):
    """Of a sigmoid."""
    rows = TensorDataset(torch.randn(ROWS, WIDTH), scale * torch.linspace(0.3, 1, ROWS)[torch.randperm(ROWS)])

    def loss(model, x, y):
        return mse_loss(model(x).sum(dim=1).sigmoid(), y)

    finding = heard("loss_receives_logits", lambda: steps(Net(), DataLoader(rows, 8), loss=loss))
    assert finding.status is status, finding.detail


@pytest.mark.parametrize("how", ["added", "item", "never added"])
def test_a_loss_of_a_second_head_is_added(how, heard):
    """As a tensor, through which its gradient passes."""

    class Two(Net):
        def __init__(self):
            super().__init__()
            self.second = nn.Linear(32, 1)

        def forward(self, x):
            hidden = torch.relu(self.body(x))
            return self.head(hidden), self.second(hidden)[:, 0]

    def loss(model, x, y):
        scores, value = model(x)
        further = mse_loss(value, x.sum(1))
        main = cross_entropy(scores, y)
        return main + further if how == "added" else main + further.item() * (how == "item")

    finding = heard("trainable_moved", lambda: steps(Two(), DataLoader(data(), 8), loss=loss))
    assert finding.status is (Status.PASSED if how == "added" else Status.SUSPECTED), finding.detail


@pytest.mark.parametrize("learned", [True, False])
def test_a_mask_of_ones_hides_no_padding(learned, heard):
    """Its rows end in the token of padding all the same."""

    def loss(model, ids):
        labels = ids if learned else ids.masked_fill(ids == 63, -100)
        return model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss

    rows = torch.randint(1, 60, (STEPS, 4, 12))
    for row, length in enumerate((5, 7, 9, 12)):
        rows[:, row, length:] = 63
    finding = heard("no_loss_on_padding", lambda: steps(causal(pad_token_id=63), zip(rows, strict=True), loss=loss))
    assert finding.status is (Status.FAILED if learned else Status.PASSED), finding.detail


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("module", Status.SUSPECTED),
        ("name", Status.SUSPECTED),
        ("frozen", Status.PASSED),
        ("trained", Status.UNJUDGED),
    ],
)
def test_an_attribute_of_a_module_freezes_nothing(how, status, heard):
    """Nor does one of a tensor by another name."""
    model = Net()
    with torch.no_grad():
        model.body.weight.normal_()  # as of a file
    if how in ("module", "frozen"):
        model.body.requires_grad = False
    if how == "frozen":
        for parameter in model.body.parameters():
            parameter.requires_grad = False
    if how == "name":
        for parameter in model.body.parameters():
            parameter.require_grad = False

    finding = heard("usual_tensors_learn", lambda: steps(model, DataLoader(data(), 8)))
    assert finding.status is status, finding.detail


class OfAList(nn.Module):
    """Layers in a list that torch registers, or not."""

    def __init__(self, kind):
        super().__init__()
        self.layers, self.head = kind([nn.Linear(WIDTH, WIDTH) for _ in range(2)]), nn.Linear(WIDTH, 3)

    def forward(self, x):
        """Return scores of three classes."""
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)


class LowRank(nn.Module):
    """A matrix and two factors that are added to it, kept in a linear layer or beside it."""

    def __init__(self, *, within):
        super().__init__()
        self.linear = nn.Linear(WIDTH, 3 * WIDTH)
        nn.init.normal_(self.linear.weight)  # as of a file
        if within:
            self.lora_A, self.lora_B = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, 3 * WIDTH, bias=False)
        else:
            self.lora = nn.ModuleDict(
                {"down": nn.Linear(WIDTH, 2, bias=False), "up": nn.Linear(2, 3 * WIDTH, bias=False)}
            )
        self.head = nn.Linear(3 * WIDTH, 2)

    @property
    def factors(self):
        """The first one and the second one."""
        return [*self.lora.values()] if hasattr(self, "lora") else [self.lora_A, self.lora_B]

    def forward(self, x):
        """Return scores of two classes."""
        down, up = self.factors
        return self.head(self.linear(x) + up(down(x)))


@pytest.mark.parametrize("within", [True, False])
@pytest.mark.parametrize(
    ("frozen", "begins", "status"),
    [
        ("linear", nn.init.zeros_, Status.PASSED),
        ("linear", nn.init.normal_, Status.SUSPECTED),
        ("-", nn.init.zeros_, Status.SUSPECTED),
        ("linear.bias", nn.init.zeros_, Status.SUSPECTED),
    ],
    ids=["frozen", "both factors drawn", "learns", "its bias alone is frozen"],
)
def test_a_matrix_beside_low_rank_factors_is_frozen(within, frozen, begins, status, heard):
    """A head learns beside them, and they add nothing at the start."""

    def train():
        model = LowRank(within=within)
        begins(model.factors[1].weight)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not name.startswith(frozen))
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        for _ in range(STEPS):
            cross_entropy(model(torch.randn(4, WIDTH)), torch.randint(0, 2, (4,))).backward()
            optimizer.step()
            optimizer.zero_grad()

    finding = heard("usual_tensors_learn", train)
    assert finding.status is status, finding.detail


@pytest.mark.parametrize("how", ["list", "list with an optimizer", "module list"])
def test_layers_in_a_plain_list_are_named(how, heard):
    """Unless an optimizer has them."""
    model = OfAList(nn.ModuleList if how == "module list" else list)
    other = torch.optim.SGD(
        [p for layer in model.layers for p in layer.parameters()] if "with" in how else [model.head.bias]
    )
    finding = heard("trainable_moved", lambda: steps(model, DataLoader(data(), 8)))

    assert finding.status is (Status.SUSPECTED if how == "list" else Status.PASSED), finding.detail
    assert ("layers[0], layers[1]" in finding.detail) is (how == "list")
    assert other.param_groups


KEPT = {
    "itself": lambda model: model.state_dict(),
    "its parameters": lambda model: dict(model.named_parameters()),
    "a copy": lambda model: copy.deepcopy(model.state_dict()),
    "clones": lambda model: {name: tensor.clone() for name, tensor in model.state_dict().items()},
    "in part": lambda model: {name: t.clone() if "body" in name else t for name, t in model.state_dict().items()},
}


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_filter_that_leaves_nothing_to_load_is_asked_about(prefix, heard):
    """As of a checkpoint that DistributedDataParallel saved."""
    model, states = Net(), {f"{prefix}{name}": tensor for name, tensor in Net().state_dict().items()}

    def train():
        model.load_state_dict({k: t for k, t in states.items() if k in model.state_dict()}, strict=False)
        steps(model, DataLoader(data(), 8))

    finding = heard("state_dict_keys_match", train)
    assert finding.status is (Status.SUSPECTED if prefix else Status.PASSED), finding.detail


@pytest.mark.parametrize("late", [0, 9], ids=["in the window", "after it"])
@pytest.mark.parametrize("kept", KEPT)
def test_a_best_state_is_a_copy(kept, late, heard):
    """A state dict shares its memory with the model, and learns with it."""
    model, best = Net(), {}

    def train():
        model.load_state_dict(model.state_dict())  # nothing has learnt yet
        steps(model, DataLoader(data(), 8), after=lambda n: best.update(KEPT[kept](model)) if n == 1 else None)
        steps(model, DataLoader(data(), 8)) if late else None
        model.load_state_dict(best)

    finding = heard("state_dict_keys_match", train)
    asked = kept in ("itself", "its parameters")
    assert finding.status is (Status.SUSPECTED if asked else Status.PASSED), finding.detail


@pytest.mark.parametrize("stepped", ["never", "each step", "another", "in a chain"])
def test_a_schedule_is_stepped(stepped, heard):
    """One of several of an optimizer may wait for its part of the training."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12) for _ in range(2)]
    if stepped == "in a chain":
        schedules = [torch.optim.lr_scheduler.ChainedScheduler(schedules)]

    def train():
        for x, y in DataLoader(data(96), 8):
            cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            for schedule in schedules[: {"never": 0, "each step": 2}.get(stepped, 1)]:
                schedule.step()

    finding = heard("schedule_ends", train)
    assert finding.status is (Status.SUSPECTED if stepped == "never" else Status.PASSED), finding.detail


class Alone(torch.optim.lr_scheduler.LRScheduler):
    """A schedule that holds no optimizer."""

    def __init__(self):
        """Hold nothing."""

    def step(self, epoch=None):
        """Change nothing."""


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("made_of", ["the same", "another", "one that steps, too", "another model's", "none"])
def test_a_schedule_is_made_of_the_optimizer_that_steps(made_of, heard):
    """Or of one that holds other tensors, or steps as well."""
    model, other = Net(), Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    second = torch.optim.AdamW((other if made_of == "another model's" else model).parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer if made_of == "the same" else second, 12)

    def train():
        for x, y in DataLoader(data(96), 8):
            cross_entropy(model(x), y).backward()
            optimizer.step()
            if made_of == "one that steps, too":
                second.step()
            schedule.step()
            optimizer.zero_grad()

    if made_of == "none":
        schedule = Alone()
    finding = heard("calls_in_order", train)
    assert finding.status is not Status.UNJUDGED, finding.detail
    assert ("schedule changes the rate of an optimizer that" in finding.detail) == (made_of == "another")
    assert (finding.status is Status.SUSPECTED) == (made_of == "another"), finding.detail


LAMBDAS = {
    "falls too early": lambda step: max(0.0, 1 - step / 6),
    "comes again": lambda step: 1.05 + math.cos(math.pi * step / 6),
    "falls in time": lambda step: max(0.0, 1 - step / 12),
    "rises first": lambda step: min(step / 3, 1 - step / 24),
    "in stages": lambda step: 0.1 ** (step // 4),
    "stays at a share": lambda step: max(0.2, 1 - step / 12),
    "stays": lambda step: 1.0,
}


@pytest.mark.parametrize("how", LAMBDAS)
def test_a_schedule_by_a_function_is_at_its_lowest_at_the_end(how, heard):
    """What it gives is asked for, as nothing declares its length."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, LAMBDAS[how])

    def train():
        for x, y in DataLoader(data(96), 8):
            cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()

    finding = heard("schedule_ends", train)
    early = how in ("falls too early", "comes again")
    assert (finding.status is Status.SUSPECTED) is early, finding.detail
    assert ("ends after 6 of the 12 steps" in finding.detail) is early


BY_HAND = {
    "rises to the end": (1e-3, lambda step: 1e-3 * (step + 1) / 1000),
    "has risen": (1e-3, lambda step: 1e-3 * min(1.0, (step + 1) / 6)),
    "falls after it": (1e-3, lambda step: 1e-3 * min((step + 1) / 11, 1 - step / 24)),
    "is another one": (1.0, lambda step: 1e-3 * (step + 1) / 1000),
    "stays": (1e-3, lambda step: 1e-4),
}
"""Rate with which an optimizer is made, and those that a loop writes."""


@pytest.mark.parametrize("how", BY_HAND)
def test_a_warm_up_by_hand_fits_the_training(how, heard):
    """The rate that the optimizer is made with is the one that it rises to, unless that is a stand-in."""
    model, (made_with, rate) = Net(), BY_HAND[how]
    optimizer = torch.optim.AdamW(model.parameters(), lr=made_with)

    def train():
        for step, (x, y) in enumerate(DataLoader(data(96), 8)):
            optimizer.param_groups[0]["lr"] = rate(step)
            cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    finding = heard("schedule_ends", train)
    told = finding.status is Status.SUSPECTED and "of 12 steps" in finding.detail
    assert told is (how == "rises to the end"), finding.detail


@pytest.mark.filterwarnings("ignore:The epoch parameter")
def test_a_schedule_that_is_told_the_epoch_is_stepped(heard):
    """It may stay where it is, at the end of a first epoch."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)

    def train():
        for x, y in DataLoader(data(96), 8):
            cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        schedule.step(0)

    finding = heard("schedule_ends", train)
    assert finding.status is not Status.SUSPECTED, finding.detail


@pytest.mark.parametrize("how", ["sum", "average", "item", "detached", "of four", "retained", "carried"])
def test_the_graph_of_a_step_is_freed(how, heard):
    """A sum of losses keeps all of them, unless it is one of numbers, or begins again."""
    model, kept = Net(), {"sum": 0, "state": torch.zeros(8, WIDTH)}

    def loss(model, x, y):
        kept["state"] = (kept["state"] + model.body(x)[:, :WIDTH]).detach()
        found = cross_entropy(model(x + kept["state"] if how == "carried" else x), y)
        if how == "retained":
            found.backward(retain_graph=True)
        if how != "carried":
            added = {"item": found.item(), "detached": found.detach()}.get(how, found)
            kept["sum"] = 0.9 * kept["sum"] + added if how == "average" else kept["sum"] + added
        return found

    def after(number):
        if how == "retained" or (how == "of four" and number % 4 == 3):
            kept["sum"] = 0

    finding = heard("live_tensors_flat", lambda: steps(model, DataLoader(data(), 8), loss=loss, after=after))
    assert finding.status is (Status.SUSPECTED if how in ("sum", "average") else Status.PASSED), finding.detail


def test_no_batch_of_an_earlier_step_is_kept_alive(heard):
    """Batches are kept to be compared with what passes read, and no longer."""
    views = TensorDataset(torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH))

    def loss(model, one, other):
        return mse_loss(model(one), model(other).detach())

    finding = heard("live_tensors_flat", lambda: steps(Net(), DataLoader(views, 8), loss=loss))
    assert finding.status is Status.PASSED, finding.detail


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_an_evaluation_is_in_eval_mode(mode, heard):
    """Where the model drops."""
    model, rows = Net(), data()

    def evaluate(number):
        if number == 1:
            model.train(mode == "train")
            with torch.no_grad():
                model(rows.tensors[0])
            model.train()

    finding = heard("state_in_training", lambda: steps(model, DataLoader(rows, 8), after=evaluate))
    assert finding.status is (Status.SUSPECTED if mode == "train" else Status.PASSED), finding.detail
    assert ("all 1 passes without gradients are in train mode" in finding.detail) is (mode == "train")


class Normalising(nn.Sequential):
    """Scores of three classes, behind a normalisation by the batch."""

    def __init__(self):
        super().__init__(nn.Linear(WIDTH, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))


class Written(torch.optim.AdamW):
    """An optimizer that writes past autograd."""

    def step(self, closure=None):
        """Take the step on other tensors."""
        for group in self.param_groups:
            for p in group["params"]:
                p.data -= 1e-3 * p.grad


@pytest.mark.parametrize("make", [Net, Normalising])
@pytest.mark.parametrize("grads", [True, False], ids=["with gradients", "without"])
@pytest.mark.parametrize(
    ("how", "asked"),
    [("train", True)]
    + [(how, False) for how in ("eval", "an average", "noise for an average", "counted", "anew", "written")],
)
def test_an_evaluation_behind_the_window_is_in_eval_mode(how, asked, grads, make, heard):
    """It is known by its loader: nothing learns, and the model draws random numbers or takes statistics."""
    model, rows = type("Own", (make,), {})(), DataLoader(data(), 8)  # other tests leave models of the class
    average = copy.deepcopy(model).eval() if "average" in how else None
    optimizer = (Written if how == "written" else torch.optim.AdamW)(model.parameters(), lr=1e-3)

    def train():
        for _ in range(2):
            model.train()
            for x, y in DataLoader(data(), 8, shuffle=True):
                cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
            model.train(how != "eval")
            with torch.set_grad_enabled(grads):
                for x, _ in DataLoader(data(), 8, shuffle=True) if how == "counted" else rows if how != "anew" else ():
                    x = x + torch.randn_like(x) if how == "noise for an average" else x
                    (average or model)(x) if how != "counted" else None
        torch.optim.swa_utils.update_bn(rows, model)

    finding = heard("state_in_training", train)
    assert finding.status is (Status.SUSPECTED if asked else Status.PASSED), finding.detail


@pytest.mark.parametrize("make", [Net, Normalising])
@pytest.mark.parametrize(
    ("how", "asked"), [("left", True), ("back", False), ("back in each step", False), ("never noisy", False)]
)
def test_a_loop_goes_back_to_train_mode_behind_its_evaluation(how, asked, make, heard):
    """Long after the window. One that never drops is told of by its first steps."""
    model, rows = type("Own", (make,), {})(), DataLoader(data(), 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def train():
        model.train(how != "never noisy")
        for _ in range(5):
            for x, y in rows:
                model.train(model.training or how == "back in each step")
                cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                for x, _ in rows:
                    model(x)
            model.train(how in ("back", "back in each step"))

    finding = heard("state_in_training", train)
    assert (finding.status is Status.SUSPECTED and "the last 20 of 24 batches" in finding.detail) is asked, (
        finding.detail
    )


def test_a_model_may_offer_a_part_of_its_parameters(heard):
    """What it registers is no item of a list."""

    class Offering(Net):
        def parameters(self, recurse=True):
            return self.head.parameters(recurse)

    finding = heard("trainable_moved", lambda: steps(Offering(), DataLoader(data(), 8)))
    assert finding.status is Status.PASSED, finding.detail


@pytest.mark.parametrize(
    "how", ["sorted", "two blocks", "shuffled", "few rows", "candidates", "two heads", "one-hot", "smoothed one-hot"]
)
def test_rows_of_one_class_are_asked_about(how, heard):
    """Of candidates the first one may always be right; a second head may have classes, too."""
    rows = 18 if how == "few rows" else ROWS
    block = {"shuffled": 1, "two blocks": 20}.get(how, ROWS)
    classes = torch.arange(rows) // block % 3
    found = TensorDataset(torch.randn(rows, WIDTH), classes)
    asked = how in ("sorted", "two blocks", "two heads", "one-hot")

    def loss(model, x, y):
        scores = model(x)
        if "one-hot" in how:
            return cross_entropy(scores, torch.eye(scores.shape[-1])[y] * (0.9 if how[0] == "s" else 1) + 0.0)
        if how == "candidates":
            scores = torch.cat([scores[:, :1], scores @ scores.detach().t()], dim=1)
        return cross_entropy(scores, y) + (cross_entropy(model.body(x), torch.arange(len(x))) if "two" in how else 0)

    finding = heard("batches_change", lambda: steps(Net(), DataLoader(found, 8, shuffle=how == "shuffled"), loss=loss))
    assert finding.status is (Status.SUSPECTED if asked else Status.PASSED), finding.detail


AGES = torch.randn(ROWS, generator=torch.Generator().manual_seed(0))
OLD = (AGES > 0).float()


@pytest.mark.parametrize(
    ("targets", "stay", "asked"),
    [
        (OLD, True, True),
        (OLD, False, False),
        (AGES, True, True),
        (AGES.sort().values, True, False),
        (torch.ones(ROWS), True, False),
        ((torch.arange(ROWS) // 6).float() % 2, True, False),
        ((torch.arange(ROWS) % 3 == 0).float(), True, False),
        (torch.arange(ROWS).roll(6).float(), True, False),
    ],
    ids=["classes", "that change", "ages", "sorted", "true ones", "true and made ones", "in turn", "numbers of rows"],
)
@pytest.mark.parametrize("loss", [binary_cross_entropy_with_logits, mse_loss])
def test_targets_of_one_batch_are_asked_about(targets, stay, asked, loss, heard):
    """The same for other inputs. A GAN and a contrastive loss have such targets, of a pattern."""
    batch, found = 12, torch.randn(ROWS, WIDTH)
    rows = [(found[at : at + batch], targets[0 if stay else at :][:batch]) for at in range(0, ROWS - batch + 1, 4)]
    finding = heard("batches_change", lambda: steps(Net(), rows, loss=lambda model, x, y: loss(model(x)[:, 0], y)))

    assert finding.status is (Status.SUSPECTED if asked else Status.PASSED), finding.detail


@pytest.mark.parametrize(
    ("settings", "first", "status"),
    [
        ({}, 512, Status.SUSPECTED),
        ({}, 400, Status.SUSPECTED),
        ({}, 250, Status.PASSED),
        ({"trainable_token_indices": [512, 513]}, 512, Status.PASSED),
        ({"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}, 512, Status.PASSED),
    ],
    ids=["frozen", "a spare row of the base", "none in the rows", "trained", "all trained"],
)
def test_a_token_that_was_added_learns(settings, first, status, heard):
    """Its embedding is drawn anew, and adapters leave it as it is."""
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    assert model.config.vocab_size <= 512
    model.resize_token_embeddings(520)
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"], **settings))
    rows = [torch.cat([torch.randint(1, 250, (4, 9)), torch.full((4, 1), first)], dim=1) for _ in range(STEPS)]

    def train():
        steps(model, [(row,) for row in rows], loss=lambda model, ids: model(input_ids=ids, labels=ids).loss)

    finding = heard("usual_tensors_learn", train)
    assert finding.status is status, finding.detail
