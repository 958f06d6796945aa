"""The adapter on disk: are all tensors in the file, and do they give the same function when read back?"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from suite.evidence import RoundTrip
from suite.probe import Probe
from suite.tensors import WeightFile
from suite.trainer import Session

PROMPT_TOKENS = 16


class RoundTripProbe(Probe):
    """Saves with the trainer's own function and reads back through peft, beside the trained adapter."""

    emits = (RoundTrip,)

    def end(self, session: Session) -> None:
        """Save, compare the file tensor by tensor, load it as a second adapter, compare logits."""
        if session.run.lora is None:
            return
        with tempfile.TemporaryDirectory(prefix="tunecheck-") as name:
            folder = Path(name)
            session.save_adapter(session, folder)
            self.emit(_compare(session, folder))


def _compare(session: Session, folder: Path) -> RoundTrip:
    trained = {
        name.replace(".default.", "."): parameter.detach().cpu()
        for name, parameter in session.model.named_parameters()
        if ".lora_" in name and ".default." in name
    }
    files = list(folder.glob("*.safetensors"))
    saved = WeightFile(folder)
    shared = [name for name in saved.names if name in trained]
    return RoundTrip(
        file_bytes=sum(file.stat().st_size for file in files),
        tensors=len(saved.names),
        missing=tuple(sorted(trained.keys() - set(saved.names))),
        unexpected=tuple(name for name in saved.names if name not in trained),
        differing=tuple(name for name in shared if not torch.equal(saved.tensor(name), trained[name])),
        zero_b=tuple(name for name in shared if ".lora_B." in name and not saved.tensor(name).any()),
        logit_difference=_logit_difference(session, folder) if files else float("inf"),
    )


def _logit_difference(session: Session, folder: Path) -> float:
    """Logits of the trained adapter against the file's, over the largest logit. The trained one stays active."""
    model = session.model
    ids = torch.tensor([session.batches.heldout[0].input_ids[:PROMPT_TOKENS]], device=session.device)
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            wanted = model(input_ids=ids, use_cache=False).logits.float()
            model.load_adapter(str(folder), adapter_name="from_disk", is_trainable=False)
            model.set_adapter("from_disk")
            got = model(input_ids=ids, use_cache=False).logits.float()
        return float((got - wanted).abs().max() / wanted.abs().max())
    finally:
        model.set_adapter("default")
        if "from_disk" in model.peft_config:
            model.delete_adapter("from_disk")
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in trainable)
        model.train(was_training)
