"""Strategies: each trains exactly its set, found by modules in the model and by layer numbers in the weight file."""

from __future__ import annotations

import json
from math import sqrt
from typing import get_args

import pytest
import tiny
import torch
from traces import healthy, with_record, with_run
from transformers import AutoConfig, AutoModelForCausalLM

from tunecheck.checks.device import DtypesAsConfigured
from tunecheck.cli import main
from tunecheck.cli.runs import count_all
from tunecheck.config import find_run, load_model, load_run
from tunecheck.config.schema import Run
from tunecheck.core.errors import ConfigError, Unsupported
from tunecheck.core.evidence import Census
from tunecheck.core.finding import Status
from tunecheck.models.layer_names import layer_count, layer_of
from tunecheck.models.shapes import tensor_shapes
from tunecheck.probes.reference.measures import sample, sampled_places
from tunecheck.probes.reference.weight_file import file_name
from tunecheck.runner import Runner
from tunecheck.strategies import STRATEGIES
from tunecheck.strategies.mixed_precision import measure_magnitudes
from tunecheck.training.load import apply_strategy

PLAIN = ["lora=null", "quantization=null"]
ON_BASE = [name for name, strategy in STRATEGIES.items() if not strategy.sections]
EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
WITHOUT = ("bitfit", "llama")
"""Refused: Llama has no biases."""
DORA = "lora.use_dora=true"

# Parameters of the weights that learn; those of Qwen2-0.5B are the figures of the system that did it first.
QWEN2 = {
    "full": (494_032_768, "100.00"),
    "freeze_lower": (315_084_160, "63.78"),
    "freeze_embeddings": (357_898_112, "72.44"),
    "adapter_layers": (29_865_088, "6.05"),
    "last_layers_and_head": (2 * 14_912_384 + 151_936 * 896, "33.59"),
    "bitfit": (24 * (896 + 2 * 128), "0.01"),
    "lora": (540_672, "0.11"),
    "qlora": (540_672, "0.11"),
}
TOTALS = {
    "smollm2-135m": (134_515_008, 460_800),
    "qwen2-0.5b": (494_032_768, 540_672),
    "tinyllama-1.1b": (1_100_048_384, 1_126_400),
    "llama-7b": (6_738_415_616, 4_194_304),
}


def run_with(*settings):
    """The quick run on a tiny model."""
    return load_run(find_run("quick/smollm2-135m-qlora"), [*tiny.SETTINGS, *settings])


def base_run(strategy, *, kind="qwen2", layers=12, tied=True):
    """A run of a strategy that trains weights of the base."""
    shape = [f"model_type={kind}", f"num_hidden_layers={layers}", f"tie_word_embeddings={str(tied).lower()}"]
    return run_with(f"strategy={strategy}", *PLAIN, *(f"model.architecture.{setting}" for setting in shape))


def unread(run, strategy):
    """The run with another strategy that no file was held against: the set must be refused by those who use it."""
    return run.model_copy(update={"strategy": strategy})


def model_of(run, dtype=torch.float32):
    """The run's model with random weights."""
    config = AutoConfig.for_model(**run.model.architecture.model_dump())
    return AutoModelForCausalLM.from_config(config, dtype=dtype).requires_grad_(False)


def expected(run):
    """What the strategy says of the names in the weight file."""
    return STRATEGIES[run.strategy].expected_trainable(run, list(tensor_shapes(run.model.architecture)))


def trained(model):
    """What really requires a gradient."""
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def of_layers(names):
    """The numbers of the layers that have tensors among these."""
    return {number for name in names if (number := layer_of(name)) is not None}


def test_every_strategy_can_be_asked_for_and_says_what_it_trains():
    """Schema, rules and table name the same ones."""
    assert list(get_args(Run.model_fields["strategy"].annotation)) == list(STRATEGIES)
    assert all(strategy.trains for strategy in STRATEGIES.values())


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("layers", [2, 5, 12])
@pytest.mark.parametrize(
    ("strategy", "kind"), [(name, kind) for name in ON_BASE for kind in ("llama", "qwen2") if (name, kind) != WITHOUT]
)
def test_a_strategy_trains_the_set_that_it_states(strategy, kind, layers, tied):
    """Found by modules on the one side, by names on the other."""
    run = base_run(strategy, kind=kind, layers=layers, tied=tied)

    assert trained(STRATEGIES[strategy].adapt(model_of(run), run)) == expected(run)


def test_the_sets_are_those_of_the_documents():
    """On twelve layers: layers 1, 10 and 11 are three layers."""
    head = {HEAD, EMBEDDING, NORM}
    untied = {name: expected(base_run(name, tied=False)) for name in ON_BASE}
    everything = untied["full"]
    norms = {name for name in everything if "norm" in name}

    assert of_layers(everything) == set(range(12))
    assert of_layers(untied["freeze_lower"]) == {6, 7, 8, 9, 10, 11}
    assert head < untied["freeze_lower"]
    assert untied["freeze_embeddings"] == everything - {EMBEDDING}
    assert of_layers(untied["adapter_layers"] - norms) == {10, 11}
    assert norms < untied["adapter_layers"]
    assert not {EMBEDDING, HEAD} & untied["adapter_layers"]
    assert of_layers(untied["last_layers_and_head"]) == {10, 11}
    assert untied["last_layers_and_head"] & head == {HEAD}
    assert {name.rpartition(".")[2] for name in untied["bitfit"]} == {"bias"}
    assert len(untied["bitfit"]) == 36


def test_a_tied_head_is_the_embedding():
    """The file may hold it twice, the model has it once."""
    names = [*tensor_shapes(base_run("full").model.architecture), HEAD]

    found = {name: STRATEGIES[name].expected_trainable(base_run(name), names) for name in ON_BASE}

    assert all(HEAD not in names for names in found.values())
    assert EMBEDDING in found["last_layers_and_head"]
    assert EMBEDDING not in found["freeze_embeddings"]


@pytest.mark.parametrize("layers", [12, 21])
def test_the_second_layer_is_not_the_eleventh(layers):
    """A substring would take layers 1 and 10 to 19 for one."""
    names = [f"model.layers.{number}.mlp.up_proj.weight" for number in range(layers)]

    assert [layer_of(name) for name in names] == list(range(layers))
    assert layer_of("model.layers.1.mlp.layers.weight") == 1
    assert layer_of("model.sublayers.1.weight") is None
    run = base_run("last_layers_and_head", layers=layers)
    assert of_layers(expected(run)) == {layers - 2, layers - 1}


def test_of_an_odd_number_of_layers_the_middle_one_learns():
    """The lower half is rounded down."""
    assert of_layers(expected(base_run("freeze_lower", layers=5))) == {2, 3, 4}


def select_by_substring(session):
    """The last two of twelve layers by "layers.1", as the documents did: layer 1 comes with them."""
    for name, parameter in session.model.named_parameters():
        parameter.requires_grad_("layers.1" in name or name == EMBEDDING)


def count_six_layers(session):
    """The lower half as if there were six layers, whatever the model has."""
    for name, parameter in session.model.named_parameters():
        parameter.requires_grad_(layer_of(name) not in range(3))


@pytest.mark.parametrize(
    ("fault", "strategy", "words"),
    [
        (
            select_by_substring,
            "last_layers_and_head",
            "9 trainable, but not declared: model.layers.1.input_layernorm",
        ),
        (count_six_layers, "freeze_lower", "27 trainable, but not declared: model.layers.3.input_layernorm.weight"),
    ],
)
def test_a_wrong_choice_of_layers_is_found(tmp_path, fault, strategy, words):
    """By the set that the weight file's names and the configuration give."""
    layers = ["model.architecture.num_hidden_layers=12", "model.parameters=1838208", "training.max_steps=2"]
    run = run_with(f"strategy={strategy}", *PLAIN, *layers, "probes.oracle_steps=[]")
    trace = Runner(folder=tmp_path, environment={}, gpu=False, faults=(fault,)).execute(run)

    finding = run.resolved_checks()["trainable_set"](trace)
    assert finding.status is Status.FAILED
    assert words in finding.detail


@pytest.mark.parametrize("strategy", ["freeze_lower", "adapter_layers", "last_layers_and_head"])
def test_a_model_of_one_layer_is_refused(strategy):
    """By both ways to the set: everything would learn under another name."""
    with pytest.raises(ConfigError, match=f"strategy={strategy}: strategy: the model has 1 decoder layers"):
        base_run(strategy, layers=1)
    run = unread(base_run("full", layers=1), strategy)

    with pytest.raises(Unsupported, match="the model has 1 decoder layers, and this strategy needs 2 or more"):
        expected(run)
    with pytest.raises(Unsupported, match="strategy: full"):
        STRATEGIES[strategy].adapt(model_of(run), run)


def test_a_target_that_the_model_lacks_is_refused_by_the_trainer():
    """For an architecture whose tensors nobody could list before it was built."""
    run = run_with("strategy=lora", "quantization=null", "model.architecture.num_hidden_layers=1")
    wrong = run.model_copy(update={"lora": run.lora.model_copy(update={"target_modules": ["w_proj"]})})

    with pytest.raises(ConfigError, match=r"yaml:7:\d+: lora.target_modules.0: 'w_proj' is in no layer .*'v_proj'"):
        apply_strategy(model_of(run), wrong)


def test_a_weight_file_with_a_gap_is_refused():
    """A shard is missing: half of the layers would be another half."""
    with pytest.raises(Unsupported, match="has tensors of layer 3 but none of 1, 2: it is damaged"):
        layer_count(["model.layers.0.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight"], at_least=2)


def test_bitfit_without_biases_is_refused():
    """With the model's name and the way out, by both ways to the set."""
    run = unread(base_run("full", kind="llama"), "bitfit")
    said = r"smollm2-135m \(model_type llama\) has none; use a model that has them, such as qwen2-0.5b, or"

    with pytest.raises(Unsupported, match=said):
        expected(run)
    with pytest.raises(Unsupported, match=said):
        STRATEGIES["bitfit"].adapt(model_of(run), run)


@pytest.mark.parametrize("settings", [[], [DORA], ["lora.use_rslora=true"]], ids=["plain", "dora", "rslora"])
def test_adapters_train_the_set_that_they_state(settings):
    """Two factors for each target and layer, with DoRA a magnitude; layers 1 and 10 to 12 apart."""
    run = run_with("strategy=lora", "quantization=null", "model.architecture.num_hidden_layers=13", *settings)
    adapted = STRATEGIES["lora"].adapt(model_of(run), run)

    assert trained(adapted) == expected(run)
    assert len(expected(run)) == 13 * 2 * (3 if DORA in settings else 2)


def test_rslora_scales_by_the_root_of_the_rank():
    """In the run's arithmetic and in peft's."""
    run = run_with("strategy=lora", "quantization=null", "lora.r=4", "lora.use_rslora=true")
    adapted = STRATEGIES["lora"].adapt(model_of(run), run)

    scales = {layer.scaling["default"] for layer in adapted.modules() if hasattr(layer, "lora_A")}
    assert scales == {run.lora.scale_of("q_proj")} == {16 / sqrt(4)}
    assert run_with("lora.r=4").lora.scale_of("q_proj") == 16 / 4


def test_dora_magnitudes_are_the_norms_of_the_base():
    """On a 16-bit base peft's own are rounded; afterwards they are the norms in fp32, and nothing is left to do."""
    run = run_with("strategy=lora", "quantization=null", DORA)
    base = model_of(run, torch.bfloat16)
    wanted = {file_name(name): p.float().norm(dim=1) for name, p in base.named_parameters() if p.dim() == 2}
    adapted = STRATEGIES["lora"].adapt(base, run)

    assert measure_magnitudes(adapted) == ("peft 0.21: DoRA magnitudes of 4 layers recomputed in fp32",)
    assert measure_magnitudes(adapted) == ()
    for name, magnitude in adapted.named_parameters():
        if ".lora_magnitude_vector." in name:
            module = file_name(name).partition(".lora_magnitude")[0]
            torch.testing.assert_close(magnitude, wanted[f"{module}.weight"])


def test_dora_in_16_bit_is_refused():
    """Its magnitudes would never move."""
    with pytest.raises(ConfigError, match=r"lora.adapter_dtype: should be fp32 or mixed with lora.use_dora.*got model"):
        run_with(DORA, "lora.adapter_dtype=model")


def scale_as_without_rslora(session):
    """The option is lost on the way: alpha / r."""
    lora = session.run.lora
    for module in session.model.modules():
        if hasattr(module, "lora_A"):
            module.scaling["default"] = lora.alpha / lora.r


def forget_the_magnitude(session):
    """A DoRA that divides by the norm and multiplies by it again."""
    for module in session.model.modules():
        if type(module).__name__ == "DoraLinearLayer":
            module.forward = lambda x, *, lora_A, lora_B, scaling, **_: lora_B(lora_A(x)) * scaling


def keep_the_norm_of_the_start(session):
    """The norm of W alone, as if B stayed zero."""
    for module in session.model.modules():
        if type(module).__name__ == "DoraLinearLayer":
            start = module.weight.detach().clone()
            module.get_weight_norm = lambda *_, start=start, **__: start


def save_without_magnitudes(session):
    """The file holds the factors alone."""
    from safetensors.torch import load_file, save_file

    inner = session.save_adapter

    def save(session, folder):
        inner(session, folder)
        path = folder / "adapter_model.safetensors"
        save_file({name: value for name, value in load_file(path).items() if "magnitude" not in name}, path)

    session.save_adapter = save


@pytest.mark.parametrize(
    ("fault", "settings", "check", "words"),
    [
        (scale_as_without_rslora, ["lora.use_rslora=true"], "adapter_algebra", "of (alpha/sqrt(r)) B A x"),
        (forget_the_magnitude, [DORA], "adapter_algebra", "of (m/n - 1) W x + m/n (alpha/r) B A x"),
        (keep_the_norm_of_the_start, [DORA], "adapter_algebra", "n the row norms of W + (alpha/r) B A"),
        (forget_the_magnitude, [DORA], "lora_gradient_schedule", "no gradient for 4 magnitudes"),
        (save_without_magnitudes, [DORA], "adapter_round_trip", "4 tensors missing from the file"),
    ],
)
def test_a_broken_kind_of_adapter_is_found(tmp_path, fault, settings, check, words):
    """The kind that was asked for is not the one that trains, or not the one that is saved."""
    run = run_with(*settings)
    trace = Runner(folder=tmp_path, environment={}, gpu=False, faults=(fault,)).execute(run)

    finding = run.resolved_checks()[check](trace)
    assert finding.status is Status.FAILED
    assert words in finding.detail


def test_a_base_that_learns_in_part_is_fp32_whole():
    """Frozen tensors too: what is kept in 16 bit is an adapter's base."""
    on_base = {"strategy": "freeze_lower", "lora": None, "quantization": None}
    rounded = with_run(healthy(precision="bf16"), **on_base)
    kept = with_record(rounded, Census, frozen_dtypes={"float32": 5}, trainable_dtypes={"float32": 8})

    assert DtypesAsConfigured()(kept).status is Status.PASSED
    assert "frozen tensors in {'bfloat16':" in DtypesAsConfigured()(rounded).detail
    assert DtypesAsConfigured()(rounded).status is Status.FAILED


def test_a_sampled_element_knows_its_row():
    """Of a small matrix and of one that is sampled with a stride."""
    for rows, columns in ((7, 5), (1000, 300)):
        numbers = torch.arange(rows)[:, None].expand(rows, columns)
        assert torch.equal(sampled_places(numbers)[0], sample(numbers))


@pytest.mark.parametrize("strategy", QWEN2)
def test_the_counts_on_qwen2_are_exact(strategy):
    """Parameters and percent."""
    (count, *_) = [count for count in count_all(load_model("qwen2-0.5b")) if count.strategy == strategy]

    assert (count.parameters, f"{count.percent:.2f}", count.total) == (*QWEN2[strategy], 494_032_768)


@pytest.mark.parametrize("model", TOTALS)
def test_the_counts_of_every_model(model):
    """All parameters, LoRA of r 8 on q and v, and DoRA's magnitudes beside it."""
    counts = {(count.strategy, "use_dora" in count.options): count for count in count_all(load_model(model))}

    assert (counts["full", False].parameters, counts["lora", False].parameters) == TOTALS[model]
    assert {count.total for count in counts.values()} == {TOTALS[model][0]}
    architecture = load_model(model).architecture
    head = architecture.hidden_size // architecture.num_attention_heads
    widths = head * (architecture.num_attention_heads + architecture.num_key_value_heads)
    magnitudes = counts["lora", True].parameters - counts["lora", False].parameters
    assert magnitudes == architecture.num_hidden_layers * widths
    assert counts["lora", False].parameters == counts["qlora", False].parameters


def test_strategies_prints_a_table(capsys):
    """A row a strategy, and below it why one is refused."""
    assert main(["strategies", "llama-7b", "--targets", "q_proj,k_proj,v_proj,o_proj"]) == 0

    printed = " ".join(capsys.readouterr().out.split())
    assert "llama-7b: 6,738,415,616 parameters, separate head matrix" in printed
    assert "lora 256 8,388,608 0.12 % low-rank adapters" in printed
    assert "bitfit - - - the biases" in printed
    assert "adapters of r 8 on q_proj, k_proj, v_proj, o_proj; with rsLoRA the same tensors" in printed
    assert "refused: strategy bitfit trains the biases, and llama-7b (model_type llama) has none" in printed


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["table", "json"])
def test_targets_that_no_layer_has_are_a_wrong_request(capsys, form):
    """The counts of the others are told all the same."""
    assert main(["strategies", "llama-7b", "--targets", "q_proj,foo", *form]) == 4

    printed = " ".join(capsys.readouterr().out.split())
    assert "'foo' is in no layer; linear layers here: down_proj, gate_proj" in printed
    assert "full" in printed


def test_strategies_as_json(capsys):
    """Machine-readable, with the settings of the adapters."""
    assert main(["strategies", "qwen2-0.5b", "--rank", "4", "--json"]) == 0

    answer = json.loads(capsys.readouterr().out)
    found = {(row["strategy"], row["options"].get("use_dora", False)): row for row in answer["strategies"]}
    assert answer["model"] == "qwen2-0.5b"
    assert found["freeze_lower", False]["tensors"] == 146
    assert found["lora", False]["parameters"] == 540_672 // 2
    assert found["lora", False]["options"] == {"r": 4, "target_modules": ["q_proj", "v_proj"]}
    assert round(found["adapter_layers", False]["percent"], 2) == 6.05


def test_a_rank_of_zero_is_a_usage_error(capsys):
    """The value and the rule."""
    with pytest.raises(SystemExit):
        main(["strategies", "--rank", "0"])
    assert "'0' should be a whole number of 1 or more" in capsys.readouterr().err
