"""The pairs of releases: what differs between a bad and a good environment, and which finding must name it."""

from __future__ import annotations

from dataclasses import dataclass

HTTPX = "httpx", "httpcore", "h11", "anyio", "sniffio", "typer-slim"
HUB_0 = "huggingface-hub==0.36.0"
STACKS: dict[str, tuple[str, ...]] = {
    "4.45": (HUB_0, "tokenizers==0.20.3", "accelerate==1.0.1", "peft==0.13.2"),
    "4.47": (HUB_0, "tokenizers==0.21.4", "accelerate==1.0.1", "peft==0.14.0"),
    "4.50": (HUB_0, "tokenizers==0.21.4", "accelerate==1.7.0"),
    "4.57": (HUB_0, "tokenizers==0.22.2", "transformers==4.57.6"),
    "5.9": (
        "huggingface-hub==1.16.0",
        "tokenizers==0.22.2",
        *HTTPX,
    ),
    "datasets": ("datasets==3.6.0", "dill==0.3.8", "multiprocess==0.70.16", "pyarrow", "pandas", "xxhash"),
}
"""What goes together, installed without dependencies above the torch of the environment that runs this."""
DATASETS_NEED = (
    *STACKS["datasets"],
    *("python-dateutil", "pytz", "six", "tzdata", "fsspec", "aiohttp", "aiosignal", "aiohappyeyeballs", "attrs"),
    *("frozenlist", "multidict", "propcache", "yarl", "requests", "urllib3", "certifi", "charset_normalizer", "idna"),
)
DATASETS_4 = ("datasets==4.8.0", *(name for name in DATASETS_NEED if not name.startswith("datasets=")))
DATASETS_5 = (
    *("datasets==5.2.0", "dill==0.4.1", "multiprocess==0.70.19"),
    *(name for name in DATASETS_4[1:] if not name.startswith(("dill", "multiprocess"))),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A bad and a good environment, and a training that goes wrong in the bad one."""

    name: str
    bad: tuple[str, ...]
    """What only the bad environment has."""
    good: tuple[str, ...]
    """What only the good one has; empty where no release is good."""
    common: tuple[str, ...]
    training: str
    """Script in trainings/."""
    wrong: str
    """What goes wrong, in a clause."""
    source: str
    """Pull request or issue."""
    named_by: tuple[str, ...]
    """Checks of which one must fail."""
    arguments: tuple[str, ...] = ()
    """Of the script."""
    expect: tuple[str, ...] = ()
    """What `--expect` adds to the declarations."""
    steps: int = 10
    """Optimizer steps to listen to."""


PAIRS: dict[str, Pair] = {
    pair.name: pair
    for pair in (
        Pair(
            name="accumulation-means",
            bad=("transformers==4.45.2",),
            good=("transformers==4.46.3",),
            common=STACKS["4.45"],
            training="accumulation.py",
            wrong="the loss is the mean of the micro-batch means, not the mean over all tokens of the step",
            source="huggingface/transformers#34191",
            named_by=("accumulation_oracle", "loss_oracle"),
        ),
        Pair(
            name="accumulation-times",
            bad=("transformers==4.47.0",),
            good=("transformers==4.47.1",),
            common=STACKS["4.47"],
            training="accumulation.py",
            wrong="the loss is multiplied by the number of accumulation steps",
            source="huggingface/transformers#35207",
            named_by=("accumulation_oracle", "loss_oracle"),
        ),
        Pair(
            name="first-token-counted",
            bad=("transformers==5.9.0",),
            good=("transformers==5.11.0",),
            common=STACKS["5.9"],
            training="first_token.py",
            wrong="the first token of a row, which nothing predicts, counts as supervised",
            source="huggingface/transformers#46204",
            named_by=("supervised_tokens",),
        ),
        Pair(
            name="rotary-base-lost",
            bad=("transformers==4.57.6", HUB_0),
            good=("transformers==5.0.0", "huggingface-hub==1.3.0"),
            common=("tokenizers==0.22.2", "accelerate==1.10.1", "peft==0.21.0", *HTTPX),
            training="saved_by_5.py",
            wrong="the rotary base in a config.json saved by transformers 5 is ignored; the default is used",
            source="huggingface/transformers, rope_parameters of release 5.0",
            named_by=("forward_matches_architecture", "base_matches_file"),
        ),
        Pair(
            name="resumed-order",
            bad=("accelerate==1.14.0",),
            good=("accelerate==1.15.0",),
            common=(*STACKS["4.57"], "peft==0.17.1"),
            training="resume.py",
            wrong="a training resumed in its second epoch repeats the row order of the first",
            source="huggingface/accelerate#4071",
            named_by=("rows_come_once",),
            steps=40,
        ),
        Pair(
            name="end-token-masked",
            bad=("trl==0.16.0",),
            good=("trl==0.16.1",),
            common=(*STACKS["4.50"], "transformers==4.50.3", "peft==0.15.2", *DATASETS_NEED),
            training="end_token.py",
            wrong="if the end token is also the padding token, the end of no row is supervised",
            source="huggingface/trl#3200",
            named_by=("labels_as_configured",),
        ),
        Pair(
            name="adapters-frozen-again",
            bad=("trl==0.23.0",),
            good=("trl==0.24.0",),
            common=(*STACKS["4.57"], "accelerate==1.7.0", "peft==0.17.1", *DATASETS_NEED),
            training="peft_on_8bit.py",
            wrong="the adapters of a user's PeftModel on an 8-bit base are frozen",
            source="huggingface/trl#4081",
            named_by=("trainable_set",),
        ),
        Pair(
            name="checkpoint-ignored",
            bad=("trl==1.14.0",),
            good=("trl==1.14.1",),
            common=(*DATASETS_5, *HTTPX),
            training="trl_sft_resume.py",
            wrong="`trl sft --resume_from_checkpoint` trains from the first step again",
            source="trl/scripts/sft.py",
            named_by=("resumed_as_configured",),
        ),
        Pair(
            name="answer-begins-masked",
            bad=("trl==1.14.1",),
            good=("trl==1.14.2",),
            common=(*DATASETS_5, *HTTPX),
            training="thought_in_prompt.py",
            expect=("supervised=^w1 w2",),
            wrong="if the template ends prompts with an empty thought block, each answer's first tokens are masked",
            source="trl/trainer/sft_trainer.py, common_prefix_length of release 1.14.2",
            named_by=("as_expected",),
        ),
        Pair(
            name="patterns-ignored",
            bad=("peft==0.13.2",),
            good=("peft==0.14.0",),
            common=(*STACKS["4.57"], "accelerate==1.7.0"),
            training="patterns.py",
            wrong="rank_pattern and alpha_pattern change the adapters but not their scaling",
            source="huggingface/peft#2195",
            named_by=("state_in_training", "adapter_algebra"),
        ),
        Pair(
            name="bias-merged-wrongly",
            bad=("peft==0.15.2",),
            good=("peft==0.16.0",),
            common=(*STACKS["4.57"], "accelerate==1.7.0"),
            training="merge.py",
            arguments=("--lora-bias",),
            wrong="the bias of lora_B is merged without the adapter's scaling",
            source="huggingface/peft#2489",
            named_by=("merge_keeps_function",),
        ),
        Pair(
            name="scaled-embedding",
            bad=("peft==0.17.1",),
            good=("peft==0.18.0",),
            common=(*STACKS["4.57"], "accelerate==1.7.0"),
            training="trainable_tokens.py",
            wrong="fresh trainable tokens on an embedding that scales its output (Gemma) change the model",
            source="huggingface/peft#2825",
            named_by=("adapters_start_neutral",),
        ),
        Pair(
            name="tied-embedding-exported",
            bad=("peft==0.18.1",),
            good=("peft==0.19.0",),
            common=(*STACKS["4.57"], "accelerate==1.7.0"),
            training="merge.py",
            arguments=("--tied", "--save-embedding"),
            wrong="a tied model with a trained embedding, merged and saved, loads with other weights",
            source="huggingface/peft#3126",
            named_by=("merge_keeps_function", "export_reads_back"),
        ),
        Pair(
            name="embedding-rate-ignored",
            bad=("peft==0.20.0",),
            good=("peft==0.21.0",),
            common=(*STACKS["4.57"], "accelerate==1.7.0"),
            training="lora_plus.py",
            wrong="LoRA+ ignores the separate learning rate of embeddings",
            source="huggingface/peft#3503",
            named_by=("rates_as_configured",),
        ),
        Pair(
            name="tied-head-merged",
            bad=("peft==0.21.0",),
            good=(),
            common=(*STACKS["4.57"], "accelerate==1.7.0"),
            training="merge.py",
            arguments=("--tied", "--adapt-head"),
            wrong="an adapter on the head of a tied model is merged into the embedding too",
            source="huggingface/peft#2018",
            named_by=("merge_keeps_function",),
        ),
        Pair(
            name="head-not-divided",
            bad=("transformers==5.23.0", "huggingface-hub==2.4.0", "tokenizers==0.23.3"),
            good=("transformers==4.50.3", HUB_0, "tokenizers==0.21.4"),
            common=("accelerate==1.7.0", *HTTPX),
            training="classes.py",
            wrong="classification heads, and BERT's, do not divide by num_items_in_batch, as the Trainer expects",
            source="huggingface/transformers#47688",
            named_by=("loss_normalised_over_accumulation",),
        ),
    )
}
