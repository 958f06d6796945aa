"""Model weights: taken from the first source that has them, verified, converted and cached once. No torch."""

import dataclasses
from collections.abc import Callable
from typing import Any

from tunecheck.assets import elsewhere, hub
from tunecheck.assets.cache import Wanted, shelf, unusable
from tunecheck.assets.folder import ModelFolder, PassedOver, check_fit, is_whole
from tunecheck.core.errors import WeightsUnavailable
from tunecheck.core.log import log
from tunecheck.core.paths import cache_folder
from tunecheck.models.description import HubSource, LocalSource, Model, PackageSource, RandomSource

__all__ = ["ModelFolder", "is_cached", "resolve"]

DELIVERIES: dict[type, Callable[[Any, Wanted], ModelFolder]] = {
    LocalSource: elsewhere.link_folder,
    HubSource: hub.deliver,
    PackageSource: elsewhere.convert_package,
    RandomSource: elsewhere.draw,
}


def resolve(model: Model, *, allow_random: bool) -> ModelFolder:
    """Return the model's folder from the first source that delivers; its notes record why earlier ones did not.

    Raises WeightsUnavailable with every source's answer, or for a model that is not as described, and WeightsDamaged
    for a file whose content is wrong: no other source is tried then, since its weights would hide the damage.
    """
    with shelf(model.name) as place:
        wanted = Wanted(model=model, allow_random=allow_random, shelf=place)
        answers: list[str] = []
        for source in model.sources:
            try:
                weights, path = DELIVERIES[type(source)](source, wanted)
            except PassedOver as reason:
                answers.append(f"{source.kind}: {reason}")
                continue
            except OSError as error:
                raise unusable(f"{model.name}: {source.kind}", error, place.folder) from error
            # A folder may have been cached under a description that has been edited since.
            differences = check_fit(path, model, weights.identifier, exact=False)
            log.debug(f"{model.name}: {weights.source} weights {weights.identifier} in {path}")
            notes = dict.fromkeys((*answers, *weights.notes, *differences))
            return ModelFolder(dataclasses.replace(weights, notes=tuple(notes)), path)
    remedies = [f"run `tunecheck fetch {model.name}` where there is a network"]
    remedies += [f"put the model's files into {each.path}" for each in model.sources if isinstance(each, LocalSource)]
    if any(isinstance(source, RandomSource) for source in model.sources):
        remedies.append("set allow_random_weights: true in the run, which leaves learning unjudged")
    found = "\n  ".join([f"{model.name}: no source has the weights:", *answers])
    raise WeightsUnavailable(f"{found}\nWhat to do: {'; or '.join(remedies)}.")


def is_cached(model: str) -> bool:
    """Return whether this model's pretrained weights are complete in the cache; nothing is hashed."""
    return any(map(is_whole, (cache_folder() / "models" / model).glob("[!.]*")))
