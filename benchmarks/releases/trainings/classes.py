"""A head for classes of rows, with accumulation."""

import tempfile

import tiny
import torch
import transformers

base = tiny.model()
torch.manual_seed(0)
model = transformers.LlamaForSequenceClassification(base.config)
rows = [{**row, "labels": at % 2} for at, row in enumerate(tiny.token_rows())]


def collate(examples):
    """Pad tokens, and keep a class a row."""
    batch = tiny.collate([{**row, "labels": row["input_ids"]} for row in examples])
    return {**batch, "labels": torch.tensor([row["labels"] for row in examples])}


tiny.train(model, rows, tempfile.mkdtemp(), data_collator=collate, gradient_accumulation_steps=4)
