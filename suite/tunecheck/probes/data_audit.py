"""What the model is really given, held against the data files: read, rendered and tokenised again by other code."""

import hashlib
import json
import random
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import torch

from tunecheck.core.check import holding
from tunecheck.core.evidence import DataSplit, TokensReplaced, Window
from tunecheck.core.row_spans import PADDING_LEARNED
from tunecheck.probes.reference.given import Row, in_common, rows_of
from tunecheck.probes.reference.measures import random_digest
from tunecheck.probes.reference.vocabulary import read_vocabulary
from tunecheck.training.data import IGNORED, Batch, Tokens
from tunecheck.training.events import Probe
from tunecheck.training.load import load_tokenizer
from tunecheck.training.session import Session

AUDIT_ALL_BELOW, AUDIT_EVERY = 100, 10
"""Reading a batch back waits for the GPU, so a long run is audited in full at first and then every tenth step."""
ALPACA = ("### Instruction:", "{instruction}", "", "### Response:", "")
"""The prompt's lines, and not those of tunecheck.training.data: what training and audit share, no audit can see."""

Ids = tuple[int, ...]
Text = tuple[str, str]
"""Instruction and answer."""
Rendered = dict[str, tuple[Ids, int]]
"""Row's key to its token ids, and how many at its beginning are not supervised."""
SHOWN_TOKENS = 32
LONG_ANSWER = 32
"""Characters from which an answer that both splits hold is the same row and no coincidence."""


class DataProbe(Probe[DataSplit | TokensReplaced | Window]):
    """Audits the splits once and the windows as they come."""

    def start(self, session: Session) -> None:
        self._read: list[torch.Tensor] = []
        """Tokens that the model looked up since the step began."""
        data = session.run.data
        self._tokenizer = session.tokenizer
        tokenizer = load_tokenizer(session.folder)  # the session's own may be another model's
        texts = {split: _records(data.file(split)) for split in ("train", "heldout")}
        rows = {split: _rendered(session, tokenizer, split, held) for split, held in texts.items()}
        if data.train_rows is not None:
            rows["train"] = dict(list(rows["train"].items())[: data.train_rows])
            texts["train"] = texts["train"][: data.train_rows] if data.template != "blocks" else texts["train"]
        self._expected = rendered = rows["train"] | rows["heldout"]
        if data.canary is not None:
            rendered["canary"] = _render(session, tokenizer, data.canary.instruction, data.canary.response)
        self._misread = _misread(session, tokenizer, rendered, texts)
        self._known = {ids: key for key, (ids, _) in reversed(rendered.items())}  # of equal rows the first
        self._train_rows = len(rows["train"])
        evaluated = {example.key: _given(example) for example in session.batches.heldout}
        seen = DataSplit(
            train_rows=len(rows["train"]),
            heldout_rows=len(rows["heldout"]),
            shared=tuple(_shared(**texts, evaluated=evaluated, trained={*map(_given, session.batches.train)})),
            largest_token_id=max(max(ids) for ids, _ in rendered.values()),
            embedding_rows=session.model.get_input_embeddings().weight.shape[0],
            misplaced=tuple(_misplaced(session, rendered)),
            duplicates={key: self._known[ids] for key, (ids, _) in rows["train"].items() if self._known[ids] != key},
            dataset=data.name,
            dataset_sha256=hashlib.sha256(b"".join(data.file(split).read_bytes() for split in texts)).hexdigest(),
        )
        self.emit(seen)

    def step_begin(self, session: Session, step: int, window: Sequence[Batch]) -> None:
        if step >= AUDIT_ALL_BELOW and step % AUDIT_EVERY:
            return
        prescribed = _prescribed_rows(session, step, self._train_rows)
        problems, data = dict[str, str](), session.run.data
        batches = [rows_of(batch) for batch in window]
        for held in batches:
            width, longest = len(held[0].ids), max(len(row.tokens) for row in held)
            if width != (asked := data.max_length if data.pad_to_sequence_len else longest):
                problem = f"{width} tokens wide, its longest row has {longest}, {asked} are asked for"
                problems.setdefault("rows are padded to another length", problem)
        rows = [*chain(*batches)]
        wanted, due = chain(prescribed, repeat("?")), [self._expected[key] for key in prescribed]
        seen = Window(
            step=step,
            digests=tuple(batch.digest for batch in window),
            rows=tuple(self._audit_row(row, key, problems) for row, key in zip(rows, wanted, strict=False)),
            expected_rows=tuple(prescribed),
            supervised_tokens=sum(label != IGNORED for row in rows for label in row.labels[1:]),
            expected_supervised_tokens=sum(len(ids) - prompt for ids, prompt in due),
            tokens=sum(len(row.tokens) for row in rows),
            random_state=random_digest(session.device),
            problems=problems,
        )
        self.emit(seen)
        self.hooks.before(session.model.get_input_embeddings(), lambda _m, args: self._read.append(args[0].clone()))

    def backward_end(self, session: Session, step: int) -> None:
        """Compare the tokens that were looked up with the batches': a hook or a wrapper may replace them on the way."""
        self.hooks.remove()
        given = {tuple(row) for batch in session.window for row in batch.input_ids.tolist()} if self._read else set()
        if replaced := [row for read in self._read for row in read.tolist() if tuple(row) not in given]:
            self.emit(TokensReplaced(step=step, read=session.tokenizer.decode(replaced[0][:SHOWN_TOKENS])))
        self._read.clear()

    def _audit_row(self, row: Row, wanted: str, problems: dict[str, str]) -> str:
        """The row's key, with whatever is wrong about it added to the problems.

        A row that has the content of the one prescribed for its place is that row: others may have the same content.
        """
        tokenizer, real = self._tokenizer, row.tokens
        key = wanted if self._expected.get(wanted, ((), 0))[0] == real else self._known.get(real, "?")
        expected, prompt = self._expected.get(key if key != "?" else wanted, (real, 0))
        if key == "?":
            kind, example = _token_problem(real, expected, tokenizer)
            problems.setdefault(kind, f"{wanted}: {example}")
        if key in self._misread:
            problems.setdefault("the tokens do not say the row's text", f"{key}: {self._misread[key]}")
        labels = [label for _, label in row.kept]
        wrong = dict(row.label_problems(tokenizer.decode))
        for kind, example in wrong.items():
            problems.setdefault(kind, f"{wanted}: {example}")
        if all(label == IGNORED for label in row.labels):
            problems.setdefault("nothing is supervised", f"{wanted}: every label is {IGNORED}")
        elif key != "?" and wrong.keys() <= {PADDING_LEARNED}:
            kinds = {
                "the prompt is supervised": any(label != IGNORED for label in labels[:prompt]),
                "the end token is not supervised": labels[-1] == IGNORED,
                "a part of the answer is not supervised": IGNORED in labels[prompt:-1],
            }
            for kind in holding(kinds):
                text = tokenizer.decode([label for label in labels if label != IGNORED])
                problems.setdefault(kind, f"{key}: supervised text {text!r}")
        return key


def _token_problem(ids: Ids, wanted: Ids, tokenizer: Any) -> tuple[str, str]:
    decode = tokenizer.decode
    if ids[1:] == wanted and ids[0] == getattr(tokenizer, "bos_token_id", None):
        return "the start token is doubled or uninvited", repr(decode(ids[:3]))
    if ids == wanted[:-1]:
        return "the end token is missing", repr(decode(ids[-6:]))
    if len(ids) < len(wanted) and wanted[: len(ids)] == ids:
        return "the row is cut off", f"{len(ids)} of {len(wanted)} tokens, ending {decode(ids[-6:])!r}"
    at = in_common(ids, wanted)
    example = f"at token {at}: {decode(ids[at:][:8])!r}, not {decode(wanted[at:][:8])!r}"
    return "tokens differ from the template's", example


def _prescribed_rows(session: Session, step: int, train_rows: int) -> list[str]:
    """All processes' keys of one window: in each micro-batch the canary first, then the shuffled epochs' next rows."""
    training, canary = session.run.training, session.run.data.canary is not None
    fresh = training.micro_batch_size - canary
    keys: list[str] = []
    micro_batches = training.gradient_accumulation_steps * session.exchange.count
    for micro_batch in range(micro_batches):
        dealt = (step * micro_batches + micro_batch) * fresh
        places = (divmod(place, train_rows) for place in range(dealt, dealt + fresh))
        keys += ["canary"] * canary + [f"train:{_deck(training.seed, epoch, train_rows)[at]}" for epoch, at in places]
    return keys


@lru_cache(maxsize=2)  # a window lies in one epoch, or in two
def _deck(seed: int, epoch: int, rows: int) -> list[int]:
    """The rows in this epoch's order: the standard library's shuffle under the text "seed/epoch"."""
    deck = [*range(rows)]
    random.Random(f"{seed}/{epoch}").shuffle(deck)
    return deck


def _records(path: Path) -> list[Text]:
    """Instruction and answer of every line; of a line of plain text that twice."""
    with path.open(encoding="utf-8") as lines:
        rows = map(json.loads, lines)
        return [(row["text"], row["text"]) if "text" in row else (row["instruction"], row["response"]) for row in rows]


def _rendered(session: Session, tokenizer: Any, split: str, records: list[Text]) -> Rendered:
    if session.run.data.template != "blocks":
        return {f"{split}:{i}": _render(session, tokenizer, *record) for i, record in enumerate(records)}
    length = session.run.data.max_length
    stream = tokenizer(" ".join(text for text, _ in records), add_special_tokens=False)["input_ids"]
    return {f"{split}:{i}": (tuple(stream[i * length :][:length]), 1) for i in range(len(stream) // length)}


def _render(session: Session, tokenizer: Any, instruction: str, response: str) -> tuple[Ids, int]:
    """Token ids of the whole row and the number of prompt tokens among them."""
    if session.run.data.template == "chat":
        turn = [{"role": "user", "content": instruction}]
        prompt = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=True, return_dict=True)
    else:
        prompt = tokenizer(_prompt(session, tokenizer, instruction))
    answer = tokenizer(response, add_special_tokens=False)["input_ids"]
    return (*prompt["input_ids"], *answer, tokenizer.eos_token_id), len(prompt["input_ids"])


def _misread(session: Session, tokenizer: Any, rendered: Rendered, records: dict[str, list[Text]]) -> dict[str, str]:
    """Key to what the row's tokens say instead of its text, by the vocabulary's file; rows that say it are left out."""
    vocabulary, data = read_vocabulary(session.folder), session.run.data
    if vocabulary is None or data.template == "blocks":
        return {}
    canary = {"canary": (data.canary.instruction, data.canary.response)} if data.canary else {}
    texts = canary | {f"{split}:{i}": text for split, held in records.items() for i, text in enumerate(held)}
    found = {
        key: vocabulary.row_problem(ids, prompt, _prompt(session, tokenizer, texts[key][0]), texts[key][1])
        for key, (ids, prompt) in rendered.items()
    }
    return {key: problem for key, problem in found.items() if problem}


def _prompt(session: Session, tokenizer: Any, instruction: str) -> str:
    if session.run.data.template == "chat":
        turn = [{"role": "user", "content": instruction}]
        return str(tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False))
    return "\n".join(ALPACA).replace("{instruction}", instruction)


def _shared(train: list[Text], heldout: list[Text], evaluated: dict[str, Ids], trained: set[Ids]) -> list[str]:
    """Held-out instructions in training's files, by text, or in the rows as loaded, by prompt tokens."""
    # A short answer (a number, a label, yes or no) comes to many questions, so it alone is no leak
    seen = {_plain(text) for row in train for text in row}
    texts = [
        instruction
        for instruction, response in heldout
        if _plain(instruction) in seen or (len(response) >= LONG_ANSWER and _plain(response) in seen)
    ]
    return texts + [key for key, ids in evaluated.items() if ids in trained]


def _misplaced(session: Session, rendered: Rendered) -> list[str]:
    """Rows of the fixed evaluations that are not the first ones of their split, or not labelled as those."""
    places = [("heldout" if split == "heldout" else "train", split) for split in session.run.evaluation.splits]
    return [
        f"{split} row {at}"
        for source, split in places
        for at, row in enumerate(session.batches.fixed(split))
        for ids, prompt in [rendered.get(f"{source}:{at}", ((), 0))]
        if (*row.input_ids,) != ids or (*row.labels,) != (*[IGNORED] * prompt, *ids[prompt:])
    ]


def _given(example: Tokens) -> Ids:
    """The tokens that are given, not learned; the whole of a block of plain text, which has no prompt."""
    given = tuple(t for t, label in zip(example.input_ids, example.labels, strict=True) if label == IGNORED)
    return given if len(given) > 1 else tuple(example.input_ids)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
