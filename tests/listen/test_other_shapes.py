"""Models whose configuration, arguments or rows have another form than a Llama's are watched to the end. fp32, CPU."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy, log_softmax
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    CLIPVisionConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedConfig,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
    VisionEncoderDecoderModel,
    ViTConfig,
    ViTModel,
)

import tunecheck
from benchmarks.scripts import architectures
from benchmarks.scripts.script import Script, judged
from tunecheck.core.finding import Status
from tunecheck.training.restore import uncached

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own
WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
IMAGE = {**WIDTHS, "image_size": 16, "patch_size": 8}
ROWS, TOKENS, VOCABULARY = 32, 12, 64
IMAGES, IMAGE_TOKEN = 4, VOCABULARY


def tokens(*shape):
    """Return rows of tokens, none of them special."""
    return torch.randint(5, VOCABULARY, shape, generator=torch.Generator().manual_seed(0))


def reader_of_images():
    """A language model that reads an image before its text, as LLaVA does."""
    text = LlamaConfig(vocab_size=VOCABULARY + 8, **WIDTHS)
    vision = CLIPVisionConfig(**IMAGE)
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE_TOKEN, image_seq_length=IMAGES)
    ids = torch.cat([torch.full((ROWS, IMAGES), IMAGE_TOKEN), tokens(ROWS, TOKENS)], dim=1)
    labels = ids.masked_fill(ids == IMAGE_TOKEN, -100)
    pixels = torch.randn(ROWS, 3, 16, 16)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels, "pixel_values": pixels}
    return LlavaForConditionalGeneration(config), given


def two_models():
    """An encoder of images and a decoder of text, each a model of its own, as TrOCR's."""
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 2, "eos_token_id": 2}
    decoder = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, add_cross_attention=True, **sizes))
    model = VisionEncoderDecoderModel(encoder=ViTModel(ViTConfig(**IMAGE)), decoder=decoder)
    model.config.decoder_start_token_id, model.config.pad_token_id, model.config.eos_token_id = 3, 1, 2
    ended = torch.cat([tokens(ROWS, 9), torch.full((ROWS, 1), 2)], dim=1)
    return model, {"pixel_values": torch.randn(ROWS, 3, 16, 16), "labels": ended}


class OwnConfig(PreTrainedConfig):
    """One that counts its layers by a name of its own."""

    model_type = "of_the_tests"

    def __init__(self, width=16, vocab_size=VOCABULARY, **others):
        super().__init__(**others)
        self.width, self.vocab_size = width, vocab_size


class Own(PreTrainedModel):
    """A model that must be given labels, and knows of no mask."""

    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.table = torch.nn.Embedding(config.vocab_size, config.width)
        self.mix = torch.nn.GRU(config.width, config.width, batch_first=True)
        self.head = torch.nn.Linear(config.width, config.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module):
        pass

    def get_input_embeddings(self):
        """Return the table that tokens are looked up in."""
        return self.table

    def get_output_embeddings(self):
        """Return the head."""
        return self.head

    def forward(self, input_ids, labels):
        """Return scores, and the loss of labels that are shifted already."""
        logits = self.head(self.mix(self.table(input_ids))[0])
        return {"loss": cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


class OwnLoss(Trainer):
    """Its loss reads labels that are shifted, and masked by 0."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Return the mean likelihood of what is not masked."""
        out = model(**inputs)
        likelihoods = log_softmax(out["logits"], dim=-1).gather(-1, inputs["labels"][..., None])[..., 0]
        loss = -likelihoods[inputs["labels"] != 0].mean()
        return (loss, out) if return_outputs else loss


def own():
    """A model of the script's own under transformers' base classes."""
    torch.manual_seed(0)
    ids = tokens(ROWS, TOKENS + 1)
    labels = ids[:, 1:].clone()
    labels[:, :4] = 0
    return Own(OwnConfig()), {"input_ids": ids[:, :-1], "labels": labels}


def watched(tmp_path, model, given, kind=Trainer, **others):
    """Train this model by a Trainer, and return what was heard."""
    rows = [{name: held[at] for name, held in given.items()} for at in range(ROWS)]
    arguments = {"per_device_train_batch_size": 4, "max_steps": 5, "report_to": "none", "save_strategy": "no", **others}
    made = TrainingArguments(tmp_path / "out", use_cpu=True, disable_tqdm=True, **arguments)
    trainer = kind(model=model, args=made, train_dataset=rows)
    with tunecheck.watch(trainer, folder=tmp_path / "report", steps=4, tell=False) as told:
        trainer.train()
    return told


@pytest.mark.parametrize("made", [reader_of_images, two_models])
def test_a_model_whose_configuration_holds_others_passes(made, tmp_path):
    """Its own configuration has no width and no number of layers."""
    told = watched(tmp_path, *made())

    assert told.verdict == "pass", repr(told)
    assert not [finding for finding in told.findings if finding.status is Status.FAILED]


@pytest.mark.parametrize("adapted", [True, False], ids=["adapters on all linears", "full"])
def test_a_model_of_images_is_trained_with_text_alone(adapted, tmp_path):
    """Its tower is as deep as its decoder, and learns nothing, which is asked about."""
    model, _ = reader_of_images()
    model.save_pretrained(tmp_path / "base")
    lora = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"} if adapted else None
    wide = {"vocab_size": 512}  # of the script's tokenizer
    config = LlavaConfig.from_pretrained(tmp_path / "base", text_config=LlamaConfig(**WIDTHS, **wide).to_dict())
    LlavaForConditionalGeneration(config).save_pretrained(tmp_path / "base")
    base = partial(LlavaForConditionalGeneration.from_pretrained, tmp_path / "base")
    row = judged(Script(lora=lora, base=lambda dtype: base(dtype=dtype)), tmp_path)

    asked = {finding.check: finding.detail for finding in row.suspected}
    assert (row.outcome, {*asked}) == ("pass", {"attention_as_configured", "trainable_moved"}), [*row.failed]
    assert "vision_tower" in asked["trainable_moved"]
    assert "key-value cache" in asked["attention_as_configured"]


def test_what_decays_is_what_the_trainer_says(tmp_path):
    """A norm of BART is called layernorm_embedding."""
    torch.manual_seed(0)
    shape = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    model = BartForConditionalGeneration(BartConfig(vocab_size=VOCABULARY, **shape, **heads, **ends))
    ids = torch.cat([tokens(ROWS, 9), torch.full((ROWS, 1), 2)], dim=1)
    told = watched(tmp_path, model, {"input_ids": ids, "labels": ids}, weight_decay=0.1)

    (found,) = (finding for finding in told.findings if finding.check == "optimizer_coverage")
    assert found.status is Status.PASSED, found


def test_labels_that_an_own_loss_reads_its_own_way_are_asked_about(tmp_path):
    """Neither are they a failure, nor does a probe end on what the model must have, or does not know."""
    found = {finding.check: finding for finding in watched(tmp_path, *own(), kind=OwnLoss).findings}

    assert found["labels_as_configured"].status is Status.SUSPECTED
    assert not [finding for finding in found.values() if finding.status is Status.FAILED]
    assert not [finding.detail for finding in found.values() if "failed at" in finding.detail]


def test_a_causal_model_with_candidates_is_watched(tmp_path):
    """Tokens of [rows, candidates, tokens] are no rows, and no probe takes them for some."""
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with tunecheck.watch(model=model, optimizer=optimizer, folder=tmp_path / "report", steps=4, tell=False) as told:
        for step in range(5):
            ids = torch.randint(5, VOCABULARY, (4, 2, TOKENS), generator=torch.Generator().manual_seed(step))
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    assert told.verdict == "pass", repr(told)
    assert not [finding.detail for finding in told.findings if "failed at" in finding.detail]


def policy(tmp_path, worth):
    """Train a policy on samples of this worth, by its own loss; return what was heard."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with tunecheck.watch(model=model, optimizer=optimizer, folder=tmp_path / "report", steps=6, tell=False) as told:
        for _ in range(7):
            ids = torch.randint(5, VOCABULARY, (8, TOKENS))
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, :-1]
            taken = (logits - logits.logsumexp(dim=-1, keepdim=True)).gather(-1, ids[:, 1:, None])[..., 0]
            (-(taken - taken.detach()).exp() * worth()).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return told


def test_a_policy_on_its_own_samples_passes_without_a_loss_that_is_known(tmp_path):
    """Each answer counts by its reward, so that its tokens are no labels that are to be likely."""
    told = policy(tmp_path, lambda: torch.randn(8, 1))

    assert told.verdict == "pass", repr(told)
    judged = {finding.check for finding in told.findings if finding.status is Status.PASSED}
    assert {"optimizer_coverage", "trainable_moved"} <= judged
    assert "loss_oracle" not in judged


def test_a_policy_whose_samples_are_all_as_good_is_asked_about(tmp_path):
    """Nothing was learned in the steps that were listened to: neither does it fail, nor pass."""
    told = policy(tmp_path, lambda: 0.0)

    assert told.verdict == "inconclusive"
    assert not [finding for finding in told.findings if finding.status is Status.FAILED]
    assert [finding.check for finding in told.findings if finding.status is Status.SUSPECTED] == ["loss_moves"]


class OfItsOwnRate(torch.optim.AdamW):
    """Takes steps of a small share of its rate, as Prodigy does at first."""

    @torch.no_grad()
    def step(self, closure=None):
        """Move by a millionth of the step."""
        held = [p for group in self.param_groups for p in group["params"]]
        before = [p.clone() for p in held]
        super().step(closure)
        for parameter, old in zip(held, before, strict=True):
            parameter.copy_(old + (parameter - old) * 1e-6)


def test_weights_whose_last_digit_exceeds_every_step_are_asked_about(tmp_path):
    """The rate of 1e-3 does not tell: what moved did so by 1e-9."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 4))
    optimizer = OfItsOwnRate(model.parameters(), lr=1e-3, weight_decay=0.0)
    with tunecheck.watch(model=model, optimizer=optimizer, folder=tmp_path / "report", steps=6, tell=False) as told:
        for _ in range(7):
            rows = torch.randn(16, 8)
            cross_entropy(model(rows), rows[:, :4].argmax(1)).backward()
            optimizer.step()
            optimizer.zero_grad()

    (found,) = (finding for finding in told.findings if finding.check == "trainable_moved")
    assert found.status is Status.SUSPECTED, found
    assert "last digit" in found.detail


class Given(SimpleNamespace):
    """As much of a model as a forward pass needs."""

    def __call__(self, **arguments):
        """Call its forward."""
        return self.forward(**arguments)


@pytest.mark.parametrize(
    ("forward", "given"),
    [
        pytest.param(lambda input_ids, use_cache=True: (use_cache,), (False,), id="knows of a cache"),
        pytest.param(lambda input_ids, **others: (sorted(others),), (["attention_mask", "use_cache"],), id="takes any"),
        pytest.param(lambda input_ids: (), (), id="knows of no mask"),
        pytest.param(lambda input_ids, labels: (labels is input_ids,), (True,), id="must have labels"),
        pytest.param(lambda input_ids, labels=None: (labels,), (None,), id="may have labels"),
    ],
)
def test_a_model_is_given_what_its_forward_takes(forward, given):
    """A mask that hides nothing is left out; one that does is not."""

    ids = tokens(1, 4)
    assert uncached(Given(forward=forward), input_ids=ids, attention_mask=torch.ones_like(ids)) == given


def test_what_a_model_returns_in_a_dictionary_has_names():
    """As transformers' own outputs have."""
    assert uncached(Given(forward=lambda input_ids: {"logits": 1}), input_ids=tokens(1, 4)).logits == 1


def test_a_mask_that_hides_something_is_never_left_out():
    """A model that does not know of it would answer for other rows."""
    ids = tokens(1, 4)
    with pytest.raises(TypeError, match="attention_mask"):
        uncached(Given(forward=lambda input_ids: ()), input_ids=ids, attention_mask=torch.tensor([[1, 1, 0, 0]]))


@pytest.mark.parametrize(
    ("model_type", "adapters"),
    [
        *(("deepseek_v32", False), ("deepseek_v32", True), ("afmoe", False), ("ernie4_5_moe", False)),
        *(("deepseek_v4", False), ("bert", False), ("longcat_flash", False), ("hrm_text", True)),
        *(("qwen4_exp_text", True), ("bailing_hybrid", False)),
    ],
)
def test_architectures_with_parts_of_their_own_pass(model_type, adapters, tmp_path):
    """An indexer chooses the tokens to attend to without gradients, a bias the experts: neither learns, in any run.

    A router's weight may learn for the chosen experts alone. A tied head may have a bias, a layer names for all inputs.
    """
    if model_type not in architectures.architectures():
        pytest.skip("this transformers has no such model")
    row = judged(architectures.training(model_type, adapters=adapters), tmp_path)

    assert [(finding.check, finding.detail) for finding in (*row.failed, *row.suspected)] == []


def test_the_attention_of_a_hybrid_is_seen_behind_layers_without_a_softmax(tmp_path, monkeypatch):
    """The first layer's is linear, and calls no kernel."""
    if "bailing_hybrid" not in architectures.architectures():
        pytest.skip("this transformers has no such model")
    monkeypatch.setitem(architectures.SIZES, "layer_group_size", 2)
    row = judged(architectures.training("bailing_hybrid"), tmp_path)

    seen = next(finding for finding in row.findings if finding.check == "attention_as_configured")
    assert (seen.status, seen.detail.startswith("configured sdpa, a training step ran sdpa:")) == (Status.PASSED, True)
