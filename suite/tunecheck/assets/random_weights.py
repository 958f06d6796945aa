"""Random weights: valid for memory and speed, no evidence of learning."""

from tunecheck.assets import build
from tunecheck.assets.cache import Wanted
from tunecheck.assets.fit import check_fit
from tunecheck.assets.folder import ModelFolder, PassedOver, open_sealed, seal
from tunecheck.core.errors import ConfigError
from tunecheck.core.log import log
from tunecheck.models.description import RandomSource

BYTE_VOCABULARY = 259
"""Size of the tokenizer of random weights: 256 bytes and <pad>, <s>, </s>."""


def deliver(source: RandomSource, wanted: Wanted) -> ModelFolder:
    """Return the architecture with weights drawn from its own initialisation under the seed, and a tokenizer.

    The tokenizer is of bytes where the vocabulary has no room for merges (see build.pair_tokenizer).
    Raises PassedOver unless the run allows random weights, ConfigError for a vocabulary smaller than the tokenizer's.
    """
    if not wanted.allow_random:
        raise PassedOver("random weights are not allowed by this run (allow_random_weights: true would)")
    model = wanted.model
    architecture = model.architecture.model_dump()
    if model.architecture.vocab_size < BYTE_VOCABULARY:
        rule = f"should be at least {BYTE_VOCABULARY}, the tokens of the byte tokenizer that random weights come with"
        raise ConfigError([f"model.architecture.vocab_size: {rule} (got {model.architecture.vocab_size})"])
    identifier = f"{model.architecture.model_type}, {model.parameters} parameters"
    origin = wanted.origin("random", identifier, f"seed {source.seed}", pretrained=False)
    # "pairs": what was cached with a tokenizer of bytes is another model
    pairs = ("pairs",) if model.architecture.vocab_size >= build.PAIR_VOCABULARY else ()
    target = wanted.shelf.target("random", architecture, source.seed, *pairs)

    def make(again: bool) -> None:
        log.info(f"{model.name}: drawing random weights ({identifier}, seed {source.seed})")
        with wanted.shelf.building(target, needed_bytes=wanted.weights_bytes) as workspace:
            out = workspace / "model"
            build.in_child(
                model.name, {"task": "random", "architecture": architecture, "seed": source.seed, "out": str(out)}
            )
            check_fit(out, model, "the model that transformers made", exact=True)
            seal(out, origin, {}, remedy="run again")

    return wanted.shelf.keep(target, make, open_sealed)
