"""Lightning: LoRA, with the model's own loss or with the cross entropy of its logits."""

import argparse

import ledger
import lightning
import tiny
import torch
import variants
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--own-loss", action="store_true", help="take the cross entropy of the logits in training_step")
parser.add_argument("--out", required=True)
options = parser.parse_args()


class Module(lightning.LightningModule):
    """A LoRA model."""

    def __init__(self) -> None:
        super().__init__()
        self.model = variants.trained("lora")
        self.book = ledger.Ledger(options.out)

    def training_step(self, batch, batch_idx):
        """Return the loss."""
        if options.own_loss:
            logits = self.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            return cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())
        return self.model(**batch).loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        """Keep the ledger."""
        self.book.stepped(batch_idx, self.model)
        self.book.write(f"loss {outputs['loss'].item()!r}")

    def configure_optimizers(self):
        """Return AdamW."""
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=1e-3)


lightning.seed_everything(42)
loader = DataLoader(tiny.token_rows(), batch_size=2, shuffle=True, collate_fn=tiny.collate)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
module = Module()
lightning.Trainer(max_steps=8, accelerator="cpu", gradient_clip_val=1.0, **quiet).fit(module, loader)
module.model.save_pretrained(options.out)
