"""What a failed check must say for each fault of the second blind set, written before any of them was run."""

from __future__ import annotations

MUST_SAY_SECOND: dict[str, str] = {
    "V41": "Some rows are not their template's tokens: they lack the beginning, and their answer's first tokens are "
    "not supervised.",
    "V42": "The rows are not those that the template gives: other tokens stand before the prompt, which is served "
    "without them.",
    "V43": "The rows do not come in the order drawn for the epoch: it stays close to the file's.",
    "V44": "The rows do not come in the order drawn for the epoch: they are sorted by length in groups.",
    "V45": "The attention mask hides tokens of the row that are not padding.",
    "V46": "At an epoch's end rows come that the order does not ask for: the epoch's first ones once more.",
    "V47": "The forward pass or its rotary positions are not what the architecture says in the run's precision.",
    "V48": "Norms, or the forward pass as a whole, are less exact than the architecture with norms in fp32.",
    "V49": "Decoding with the cache does not agree with a forward pass over the whole text, or is not greedy by it.",
    "V50": "What was generated is not the greedy text after the prompt, or the prompt's tokens are not training's.",
    "V51": "The loss, or its number of supervised tokens, is not that of all of the window's supervised tokens.",
    "V52": "The gradient is not that of the loss: it is smaller by the number of micro-batches.",
    "V53": "The gradient is not that of the loss: it is larger by the number of tokens, or a scale is ignored.",
    "V54": "The gradient is not that of the loss: some rows' part is missing.",
    "V55": "The window's gradient is not the sum of its micro-batches': it is the last one's.",
    "V56": "The window's gradient is not the sum of its micro-batches', each unclipped.",
    "V57": "Not every tensor decays as asked: some are in a group without weight decay, or updates are not AdamW's.",
    "V58": "The gradients stepped with are above the run's limit, or updates are not AdamW's of gradients so clipped.",
    "V59": "The norm reported is not that of all gradients, or the clipped ones are not at the limit.",
    "V60": "The learning rate of a step is not the schedule's: too low in the middle, rising at the end.",
    "V61": "The learning rate of a step in the warm-up is not the schedule's.",
    "V62": "In fp16 the loss is not scaled, or the gradients have lost their small values.",
    "V63": "Some adapters add something else than (alpha / r) B A x, or have another scaling than the run asks for.",
    "V64": "The adapters' dropout is not active although the run asks for it.",
    "V65": "Dropout acts on the base too, or the adapters do not compute their formula with dropout on their input.",
    "V66": "The adapters do not start neutral: DoRA's magnitudes are not the norms of the base's rows.",
    "V67": "The adapters do not compute DoRA's formula: the norm they divide by is not that of the adapted weight.",
    "V68": "The 4-bit weights or their block scales are not what quantising the file's weights gives.",
    "V69": "The saved adapter, read back, is not the trained one: tensors are missing or its targets are others.",
    "V70": "The saved adapter lacks trained tensors, or read back it does not give the trained model.",
    "V71": "Training resumed from the checkpoint does not go on as the uninterrupted one: losses or weights differ.",
    "V72": "Training resumed from the checkpoint does not go on as the uninterrupted one: its learning rate differs.",
    "V73": "The evaluation is not the mean over its rows' supervised tokens, or counts more tokens than they have.",
    "V74": "The frozen base changed in the run, or an evaluation changes weights or is not that of base and adapters.",
    "V75": "The merged model does not compute what base and adapter compute.",
    "V76": "A step holds more memory than a 4-bit base needs: unpacked weights live through the backward pass.",
    "V77": "Layers are computed more often than checkpointing asks for, or a step takes too long.",
    "V78": "The same run with the same seed does not repeat.",
    "V79": "The reported number of supervised tokens of a step is not that of its window.",
    "V80": "The reported time of a step is not the time it took, or tokens per second are too high.",
}
"""Id to one sentence: what would lead a person to the cause."""
