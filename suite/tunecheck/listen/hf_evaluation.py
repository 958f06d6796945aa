"""One evaluation of a Trainer, seen from outside: its rows, its modes, and the loss of its own logits."""

import math
from typing import Any

import torch

from tunecheck.core.evidence import EvaluationRows
from tunecheck.probes.reference.measures import digest
from tunecheck.training.data import IGNORED
from tunecheck.training.hooks import Hooks

MOST_TRAINED, MOST_EVALUATED = 2000, 500
"""Rows of each data set that are looked at: a second's reading at most."""


class WatchedEvaluation:
    """The forward passes of one evaluation: modes, gradients, and the loss of their own logits."""

    def __init__(self, model: Any) -> None:
        self._modules = list(model.modules())
        self._learning = [p for p in model.parameters() if p.requires_grad]
        self._before = [digest(p) for p in self._learning]
        self._training, self._gradients, self._seen = 0, False, True
        self.labels: Any = None
        """Those of the batch that is evaluated now, where the model is not given them."""
        self._hooks = Hooks()
        self._sum, self._tokens = 0.0, 0
        self._rows: int | None = 0
        self._means: list[tuple[float, float, int]] = []
        """Of each batch: mean loss, the same against a uniform guess, rows."""
        self._uniform = 0.0
        self._hooks.after(model, self._look, with_kwargs=True)

    def _look(self, _model: Any, args: Any, given: dict[str, Any], out: Any) -> None:
        self._training = max(self._training, sum(module.training for module in self._modules))
        self._gradients |= torch.is_grad_enabled()
        logits = out.get("logits") if isinstance(out, dict) else getattr(out, "logits", None)
        labels = given.get("labels", self.labels)
        self._rows = None if self._rows is None or labels is None else self._rows + _documents(given, labels)
        if labels is None or logits is None or logits.shape[:2] != labels.shape:
            self._seen = False
            return
        total, uniform, tokens = 0.0, 0.0, 0
        for scores, wanted in zip(logits, labels.to(logits.device), strict=True):
            learnt = wanted[1:] != IGNORED
            chosen = scores[:-1][learnt].double()
            scale = chosen.logsumexp(dim=-1)
            total -= float((chosen.gather(1, wanted[1:][learnt][:, None])[:, 0] - scale).sum())
            uniform -= float((chosen.mean(dim=-1) - scale).sum())
            tokens += int(learnt.sum())
        self._sum, self._uniform, self._tokens = self._sum + total, self._uniform + uniform, self._tokens + tokens
        means = (total / tokens, uniform / tokens) if tokens else (math.nan, math.nan)
        self._means.append((*means, len(labels)))

    def close(self) -> dict[str, Any]:
        """Stop watching; return the fields of EvaluationSeen that were seen."""
        self._hooks.remove()
        # a script's own evaluation may call its model as it likes
        whole = self._seen and not self._hooks.error and self._tokens > 0
        rows = sum(rows for *_, rows in self._means)
        return {
            "token_mean_loss": self._sum / self._tokens if whole else None,
            "batch_mean_loss": sum(mean * rows for mean, _, rows in self._means) / rows if whole else None,
            "token_mean_uniform": self._uniform / self._tokens if whole else None,
            "batch_mean_uniform": sum(mean * rows for _, mean, rows in self._means) / rows if whole else None,
            "tokens": self._tokens,
            "rows": None if self._hooks.error else self._rows,
            "training_modules_during": self._training,
            "gradients_enabled": self._gradients,
            "weights_changed": [digest(p) for p in self._learning] != self._before,
        }


def _documents(given: dict[str, Any], labels: Any) -> int:
    """Return how many rows of the data set these are: a packed row holds one for each position 0."""
    positions = given.get("position_ids")
    return len(labels) if positions is None else int((positions == 0).sum())


def rows_due(trainer: Any, dataset: Any) -> int | None:
    """Return the rows that an evaluation must take; None for data without a length, and for several sets."""
    if isinstance(dataset, dict | str) or not hasattr(dataset, "__len__"):
        return None
    dropped = len(dataset) % trainer.args.eval_batch_size if trainer.args.dataloader_drop_last else 0
    return len(dataset) - dropped


def shared_rows(trainer: Any) -> list[EvaluationRows]:
    """Return how many rows of the evaluation are trained on; nothing where their tokens are not known."""
    trained = _rows(trainer.train_dataset, MOST_TRAINED)
    evaluated = _rows(getattr(trainer, "eval_dataset", None), MOST_EVALUATED) if trained else []
    known = set(trained)
    among = sum(row in known for row in evaluated)
    return [EvaluationRows(rows=len(evaluated), among=among, trained=len(trained))] if evaluated else []


def _rows(dataset: Any, most: int) -> list[tuple[int, ...]]:
    """Return the tokens of the first rows of a list, or of a table of `datasets`: to read another may cost anything."""
    if type(dataset).__module__.startswith("datasets.") and hasattr(dataset, "select_columns"):
        if "input_ids" not in (dataset.column_names or ()) or dataset.format["type"] == "custom":
            return []
        rows = dataset.select_columns("input_ids")[:most]["input_ids"]
    elif type(dataset) is list and all(isinstance(row, dict) and "input_ids" in row for row in dataset[:most]):
        rows = [row["input_ids"] for row in dataset[:most]]
    else:
        return []
    return [tuple(int(token) for token in row) for row in rows]
