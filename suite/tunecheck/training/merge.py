"""An adapter made part of the weights: how a model that was trained with one is handed on without peft."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from tunecheck.training.session import Session


def merge(session: "Session", saved: "Path") -> Any:
    """The session's base with this saved adapter in its weights: no peft left, 4-bit weights unpacked to its dtype.

    The session's own model is used up, so that no second base is in memory. A 4-bit base is unpacked first: the adapter
    was trained beside those values, neither beside the file's nor beside a sum that is rounded to 4 bit again (peft
    issues 2321 and 1035). Raises ValueError for an adapter that is not finite.
    """
    from peft import PeftModel

    base = session.model.unload()
    if session.run.quantization is not None:
        base = base.dequantize()
    return PeftModel.from_pretrained(base, saved).merge_and_unload(safe_merge=True)
