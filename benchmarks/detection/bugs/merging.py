"""The adapter is merged, but not with the weights that it was trained beside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from suite.training.session import Session


def rounded_to_4bit_again(session: Session) -> None:
    """The adapter is merged in one call on the packed model: each sum is rounded to the 4-bit grid once more."""
    from peft import PeftModel

    def merge(session: Session, saved: Path) -> Any:
        return PeftModel.from_pretrained(session.model.unload(), saved).merge_and_unload(safe_merge=True)

    session.merge = merge


def on_the_files_weights(session: Session) -> None:
    """The adapter is merged into the file's weights, without the rounding to 4 bit that it was trained to make up."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    def merge(session: Session, saved: Path) -> Any:
        base = AutoModelForCausalLM.from_pretrained(
            session.folder, dtype=session.model.dtype, device_map={"": session.device}, local_files_only=True
        )
        return PeftModel.from_pretrained(base, saved).merge_and_unload(safe_merge=True)

    session.merge = merge
