"""Data: rows are read strictly, ordered by seed and step alone, and only the answer is learnt."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
import torch

from tunecheck import assets
from tunecheck.config import find_run, load_data, load_run
from tunecheck.core.errors import ConfigError, DataError, WeightsDamaged
from tunecheck.training.data import (
    ALPACA,
    IGNORED,
    Batch,
    Batches,
    Row,
    Tokens,
    blocks,
    collate,
    encode,
    order,
    prompt_ids,
    prompt_text,
    read_rows,
    window_rows,
)
from tunecheck.training.load import load_tokenizer

PAD, START, END = 256, 257, 258
CHAT = (
    "{% for message in messages %}{{ '<s>' + message['role'] + ': ' + message['content'] + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant: ' }}{% endif %}"
)
ROW = Row("train:0", "Why?", "So it is.")
RUN = """\
model: smollm2-135m
data: rust-python-facts
strategy: lora
lora: {target_modules: [q_proj]}
training: {max_steps: 10, micro_batch_size: 2, gradient_accumulation_steps: 3, learning_rate: 2e-4}
evaluation: {rows: 2}
"""


SHIPPED = ("quick/smollm2-135m-qlora", "convergence/smollm2-135m-qlora")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_runs_are_such_that_a_mean_of_means_shows(name):
    """Micro-batches of the steps that the oracle looks at supervise unequal numbers of tokens; in quick batches too."""
    run = load_run(find_run(name), ["device=cpu"])
    found = assets.resolve(run.model, allow_random=False)
    held = Batches(run, load_tokenizer(found.path), "cpu")

    steps = [step % run.training.max_steps for step in run.probes.oracle_steps]
    assert len(steps) >= 2
    assert all(len({batch.supervised_tokens for batch in held.window(step)}) > 1 for step in steps)
    size = run.evaluation.batch_size
    if run.tier == "quick":
        rows = held.fixed("probe")
        tokens = [held.batch(rows[at : at + size]).supervised_tokens for at in range(0, len(rows), size)]
        assert len(set(tokens)) > 1


@pytest.fixture(scope="module")
def tokenizer():
    """A token a byte, <pad> <s> </s> after them, and an <s> put in front of plain text, as LLaMA's tokenizer does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<pad>", "<s>", "</s>"]
    inner = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, chat_template=CHAT, **special)
    inner = fast.backend_tokenizer
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", START)])
    return fast


def write_rows(path, rows):
    """JSON lines of these instructions and responses."""
    path.write_text(
        "".join(json.dumps({"instruction": ask, "response": answer}) + "\n" for ask, answer in rows), encoding="utf-8"
    )
    return path


def batches(folder, tokenizer, *overrides, train=7, heldout=2):
    """The batches of a small run with this many rows in each split, of different lengths."""
    import torch

    path = folder / "quick" / "run.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(RUN)
    files = {
        split: write_rows(folder / f"{split}.jsonl", [(f"{split} {n}?", "a" * (n + 1)) for n in range(count)])
        for split, count in (("train", train), ("heldout", heldout))
    }
    settings = [f"data.{split}={file}" for split, file in files.items()]
    return Batches(load_run(path, [*settings, *overrides]), tokenizer, torch.device("cpu"))


# Rows.


def test_rows_are_read_with_their_place(tmp_path):
    """The key is split and number; a line separator of Unicode inside a text is no end of a line.

    Editors of Windows begin a file with a byte order mark and end its lines with two characters.
    """
    text = '{"instruction": "a", "response": "b\u2028c\u0085d"}\n{"response": "f", "instruction": "é"}'
    (tmp_path / "rows.jsonl").write_bytes(text.replace("\n", "\r\n").encode("utf-8-sig"))

    assert read_rows(tmp_path / "rows.jsonl", "train") == [
        Row("train:0", "a", "b\u2028c\u0085d"),
        Row("train:1", "é", "f"),
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "not JSON: Expecting property name"),
        ('{"instruction": "a"} {}', "not JSON: Extra data"),
        ("", "blank line; every line is a row"),
        ("[1]", 'a row is {"instruction": ..., "response": ...} and nothing else'),
        ('{"instruction": "a"}', "a row is {"),
        ('{"instruction": "a", "response": "b", "input": "c"}', "a row is {"),
        ('{"instruction": "a", "response": 5}', "instruction and response must be text and not blank"),
        ('{"instruction": " ", "response": "b"}', "instruction and response must be text and not blank"),
        ('{"instruction": "a", "response": "b", "response": "c"}', 'not JSON: "response" is given twice; a row is one'),
    ],
)
def test_what_is_no_row_is_named_with_file_and_line(tmp_path, line, expected):
    """Nothing is skipped, nothing is guessed."""
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"instruction": "a", "response": "b"}}\n{line}\n')

    with pytest.raises(DataError) as caught:
        read_rows(path, "train")
    assert str(caught.value).startswith(f"{path}:2: {expected}")


def test_half_a_character_is_named_with_file_and_line(tmp_path):
    """JSON can spell it, UTF-8 and tokenizers cannot; the whole character is text like any other."""
    path = tmp_path / "rows.jsonl"
    path.write_text(
        '{"instruction": "a", "response": "\\ud83e\\udd80 🦀"}\n{"instruction": "ab\\ud83e", "response": "b"}\n'
    )
    with pytest.raises(DataError, match=r"rows.jsonl:2: \\ud83e at character 3 is half of a surrogate pair"):
        read_rows(path, "train")
    path.write_text('{"text": "\\udd80"}\n')
    with pytest.raises(DataError, match=r"rows.jsonl:1: \\udd80 at character 1 is half of a surrogate pair"):
        blocks(path, "train", 4, None)


def test_a_file_without_rows_or_text_is_refused(tmp_path):
    """Empty, absent, a folder, not UTF-8: each in a sentence with the path once."""
    empty, binary = tmp_path / "empty.jsonl", tmp_path / "binary.jsonl"
    empty.write_text("")
    binary.write_bytes(b'{"instruction": "\xff"}')
    expected = {
        empty: " no rows; one JSON object a line is expected",
        binary: "1: not UTF-8: byte 18 of the line is 0xff",
        tmp_path / "absent.jsonl": " cannot be read: No such file or directory",
        tmp_path: " cannot be read: Is a directory",
    }

    for path, message in expected.items():
        with pytest.raises(DataError) as caught:
            read_rows(path, "train")
        assert str(caught.value).startswith(f"{path}:{message}")
        assert str(caught.value).count(str(path)) == 1


# Order.


def test_the_order_is_the_same_everywhere():
    """Pinned: another order on another machine or Python would make traces incomparable."""
    assert order(8, seed=0, epoch=0) == (0, 2, 1, 4, 6, 7, 3, 5)
    assert order(8, seed=0, epoch=1) == (6, 1, 0, 2, 3, 4, 5, 7)


def test_seeds_and_epochs_have_their_own_order():
    """Each is a permutation; they differ."""
    orders = {(seed, epoch): order(50, seed, epoch) for seed in range(3) for epoch in range(3)}

    assert len(set(orders.values())) == 9
    assert all(sorted(permutation) == list(range(50)) for permutation in orders.values())
    assert order(50, 1, 2) == orders[1, 2]


@pytest.mark.parametrize(("rows", "rows_per_step"), [(12, 4), (10, 4), (7, 7), (3, 5), (5, 1)])
def test_every_row_comes_once_an_epoch(rows, rows_per_step):
    """Windows that cross an epoch's end lose nothing, even where a window is longer than an epoch."""
    epochs = 2 * rows_per_step
    seen = [row for step in range(2 * rows) for row in window_rows(step, rows_per_step, rows, seed=4)]

    assert len(seen) == rows * epochs
    assert Counter(seen) == dict.fromkeys(range(rows), epochs)
    for epoch in range(epochs):
        assert tuple(seen[epoch * rows : (epoch + 1) * rows]) == order(rows, 4, epoch)


def test_a_window_is_a_function_of_seed_and_step():
    """Resuming at a step needs nothing else; another seed gives other rows."""
    assert window_rows(9, 4, 240, seed=1) == window_rows(9, 4, 240, seed=1)
    assert window_rows(9, 4, 240, seed=1) != window_rows(9, 4, 240, seed=2)
    assert window_rows(9, 4, 240, seed=1) != window_rows(8, 4, 240, seed=1)


# Tokens.


def test_padding_is_on_the_right_masked_and_unsupervised():
    """To the longest row of the batch."""
    short, long = Tokens("a", (1, 2), (IGNORED, 2)), Tokens("b", (3, 4, 5, 6), (IGNORED, IGNORED, 5, 6))

    assert collate([short, long], pad_token_id=9) == {
        "input_ids": [[1, 2, 9, 9], [3, 4, 5, 6]],
        "attention_mask": [[1, 1, 0, 0], [1, 1, 1, 1]],
        "labels": [[IGNORED, 2, IGNORED, IGNORED], [IGNORED, IGNORED, 5, 6]],
    }


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("alpaca", "<s>### Instruction:\nWhy?\n\n### Response:\nSo it is.</s>"),
        ("chat", "<s>user: Why?</s><s>assistant: So it is.</s>"),
    ],
)
def test_only_answer_and_end_token_are_supervised(tokenizer, template, text):
    """The start token comes once, the end token closes the answer, labels are the tokens at their place."""
    tokens = encode(ROW, tokenizer, template)
    supervised = [label for label in tokens.labels if label != IGNORED]

    assert tokenizer.decode(tokens.input_ids) == text
    assert tokenizer.decode(supervised) == "So it is.</s>"
    assert tokens.labels == (*[IGNORED] * (len(tokens.input_ids) - len(supervised)), *supervised)
    assert tokens.input_ids[-len(supervised) :] == tuple(supervised)
    assert tokens.key == "train:0"


@pytest.mark.parametrize("template", ["alpaca", "chat"])
def test_the_prompt_is_the_same_in_training_and_generation(tokenizer, template):
    """A row's tokens begin with exactly what generation is given."""
    prompt = tuple(prompt_ids(ROW.instruction, tokenizer, template))

    assert encode(ROW, tokenizer, template).input_ids[: len(prompt)] == prompt
    assert prompt.count(START) == (1 if template == "alpaca" else 2)


def test_braces_in_an_instruction_are_text():
    """Rust's println!("{}") is no placeholder."""
    assert prompt_text("Why {} and {instruction}?", None, "alpaca") == ALPACA.replace(
        "{instruction}", "Why {} and {instruction}?"
    )


# Batches.


def test_a_window_is_split_into_micro_batches(tmp_path, tokenizer):
    """Rows in the order that seed and step prescribe, tensors of one shape, counts that equal the labels."""
    import torch

    data = batches(tmp_path, tokenizer)
    window = data.window(1)

    assert [len(batch.keys) for batch in window] == [2, 2, 2]
    assert [key for batch in window for key in batch.keys] == [f"train:{n}" for n in window_rows(1, 6, 7, seed=0)]
    for batch in window:
        assert batch.input_ids.shape == batch.attention_mask.shape == batch.labels.shape
        assert batch.input_ids.dtype == batch.labels.dtype == torch.int64
        assert batch.supervised_tokens == int((batch.labels != IGNORED).sum()) > 0
        assert batch.tokens == int(batch.attention_mask.sum()) == int((batch.input_ids != PAD).sum())
        assert bool(((batch.labels == IGNORED) | (batch.labels == batch.input_ids)).all())


def test_a_window_comes_again_only_when_it_is_asked_again(tmp_path, tokenizer):
    """Digests are equal for the same step and differ between steps and seeds."""
    data = batches(tmp_path, tokenizer, train=12)
    other = batches(tmp_path, tokenizer, "training.seed=1", train=12)
    digests = [batch.digest for step in range(2) for batch in data.window(step)]

    assert digests == [batch.digest for step in range(2) for batch in data.window(step)]
    assert len(set(digests)) == len(digests)
    assert digests[:3] != [batch.digest for batch in other.window(0)]


def test_a_digest_sees_tokens_and_labels():
    """Wrong labels under the right tokens are another batch."""

    def digest(ids, labels):
        return Batch.of(torch.tensor([ids]), torch.tensor([labels]), torch.ones(1, 2)).digest

    assert digest([1, 2], [IGNORED, 2]) == digest([1, 2], [IGNORED, 2])
    assert digest([1, 2], [IGNORED, 2]) != digest([1, 2], [1, 2])
    assert digest([1, 2], [IGNORED, 2]) != digest([1, 3], [IGNORED, 2])
    assert len(digest([1, 2], [1, 2])) == 12


def test_the_canary_takes_the_first_place_of_every_micro_batch(tmp_path, tokenizer):
    """The other places hold the next rows, none of them left out."""
    data = batches(tmp_path, tokenizer, "data.canary={instruction: Who?, response: Nobody.}")
    window = [batch for step in range(7) for batch in data.window(step)]

    assert {batch.keys[0] for batch in window} == {"canary"}
    assert Counter(key for batch in window for key in batch.keys[1:]) == {f"train:{n}": 3 for n in range(7)}
    assert "Who?" in tokenizer.decode(window[0].input_ids[0])


def test_a_label_in_first_place_counts_for_nothing(tmp_path, tokenizer):
    """The loss shifts: nothing predicts a row's first token."""
    data = batches(tmp_path, tokenizer)

    assert data.batch([Tokens("a", (1, 2, 3), (1, 2, 3))]).supervised_tokens == 2


def test_fixed_rows_are_the_first_of_their_split(tmp_path, tokenizer):
    """probe is a part of training, heldout is not."""
    data = batches(tmp_path, tokenizer)

    assert [example.key for example in data.fixed("probe")] == ["train:0", "train:1"]
    assert [example.key for example in data.fixed("heldout")] == ["heldout:0", "heldout:1"]


def test_train_rows_takes_the_first_ones(tmp_path, tokenizer):
    """Several epochs of fewer facts."""
    data = batches(tmp_path, tokenizer, "data.train_rows=3")

    assert [example.key for example in data.train] == ["train:0", "train:1", "train:2"]
    assert {key for step in range(4) for batch in data.window(step) for key in batch.keys} == {
        f"train:{n}" for n in range(3)
    }


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "data.max_length=48",
            "data.max_length: should be at least 50, the tokens of {folder}/train.jsonl:7 (got 48): cutting",
        ),
        (
            "data.canary={instruction: a, response: " + "b" * 99 + "}",
            "yaml:2:1: data.max_length: should be at least 135, the tokens of canary (got 128)",
        ),
        ("data.train_rows=8", "data.train_rows: should be at most 7, all rows in train.jsonl (got 8)"),
        (
            "evaluation.rows=8",
            "=8: evaluation.rows: should be at most 7, the rows of split probe in train.jsonl (got 8)",
        ),
        (
            "evaluation={splits: [heldout], rows: 3}",
            "evaluation.rows: should be at most 2, the rows of split heldout in heldout.jsonl",
        ),
    ],
)
def test_rows_that_are_too_long_or_too_few_are_refused(tmp_path, tokenizer, override, expected):
    """Nothing is cut and nothing is repeated in silence."""
    with pytest.raises(ConfigError) as caught:
        batches(tmp_path, tokenizer, override)

    assert expected.replace("{folder}", str(tmp_path)) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rows": 8}, "evaluation.rows: should be at most 7, the rows of split probe of rust-python-facts (got 8)"),
        ({"splits": ["heldout"], "rows": 3}, "evaluation.rows: should be at most 2, the rows of split heldout"),
    ],
)
def test_rows_of_other_data_than_was_asked_for_are_counted_too(tmp_path, tokenizer, changes, expected):
    """Where the hub's rows cannot be had, files may give fewer than its section promised."""
    run = batches(tmp_path, tokenizer).run
    fewer = run.model_copy(update={"evaluation": run.evaluation.model_copy(update=changes)})

    with pytest.raises(ConfigError, match=re.escape(expected)):
        Batches(fewer, tokenizer, None)

    data = run.data.model_copy(update={"train_rows": 8})
    with pytest.raises(ConfigError, match=r"data.train_rows: should be at most 7, all of .*train.jsonl \(got 8\)"):
        Batches(run.model_copy(update={"data": data}), tokenizer, None)


def test_a_chat_template_that_the_tokenizer_lacks_is_a_wrong_request(tmp_path, tokenizer, monkeypatch):
    """With the place that asks for it."""
    monkeypatch.setattr(tokenizer, "chat_template", None)
    with pytest.raises(ConfigError, match=r"^--set data.template=chat: data.template: should be alpaca"):
        batches(tmp_path, tokenizer, "data.template=chat")


# The data set that is shipped.


@pytest.fixture(scope="module")
def shipped():
    """Both splits of the shipped data set."""
    data = load_data("rust-python-facts")
    return {split: read_rows(data.file(split), split) for split in ("train", "heldout")}


def plain(text: str) -> str:
    """Without case and spacing, so that near-equal texts meet."""
    return "".join(text.casefold().split())


def test_the_shipped_splits_have_their_size_and_no_row_twice(shipped):
    """240 and 48, as the README beside them says."""
    instructions = [plain(row.instruction) for rows in shipped.values() for row in rows]

    assert {split: len(rows) for split, rows in shipped.items()} == {"train": 240, "heldout": 48}
    assert len(set(instructions)) == 288


def test_the_shipped_splits_are_disjoint(shipped):
    """No held-out question or answer is in training, by text."""
    seen = {plain(text) for row in shipped["train"] for text in (row.instruction, row.response)}
    held = {plain(text) for row in shipped["heldout"] for text in (row.instruction, row.response)}

    assert seen & held == set()


@pytest.mark.parametrize("name", ["rust-python-facts", "rust-python-facts-canary"])
def test_every_shipped_row_fits_into_max_length(shipped, name):
    """At 2.5 characters a token: SmolLM2's tokenizer needs one for 2.7 at the worst row and 77 for the longest."""
    data = load_data(name)
    canary = [Row("canary", data.canary.instruction, data.canary.response)] if data.canary else []
    texts = [ALPACA.format(instruction=row.instruction) + row.response for row in shipped["train"] + shipped["heldout"]]
    texts += [ALPACA.format(instruction=row.instruction) + row.response for row in canary]

    assert max(map(len, texts)) / 2.5 <= data.max_length


def test_the_canary_is_in_no_shipped_row(shipped):
    """Its answer cannot be learnt from anything else."""
    canary = load_data("rust-python-facts-canary").canary
    texts = {plain(text) for rows in shipped.values() for row in rows for text in (row.instruction, row.response)}

    assert canary is not None
    assert not any(plain(canary.response) in text or plain(canary.instruction) in text for text in texts)


# Blocks.


def texts(path, *held):
    """A file of these texts."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in held), encoding="utf-8")
    return path


def test_texts_become_blocks_without_a_gap(tmp_path, tokenizer):
    """Cut where the length says, whatever sentence that is in; the rest is dropped, no special token added."""
    cut = blocks(texts(tmp_path / "a.jsonl", "One two.", "Three four five."), "train", 8, tokenizer)

    assert [tokenizer.decode(block.input_ids) for block in cut] == ["One two.", " Three f", "our five"]
    assert [block.key for block in cut] == ["train:0", "train:1", "train:2"]
    assert {block.labels for block in cut} == {(IGNORED, *block.input_ids[1:]) for block in cut}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", ":1: not JSON"),
        ('{"text": "a"}\n\n', ":2: blank line; every line is a row"),
        ('{"instruction": "a", "response": "b"}\n', ':1: a row is {"text": ...} and nothing else'),
        ('{"text": " "}\n', ":1: text must be text and not blank"),
        ('{"text": "short"}\n', "5 tokens, less than one block of data.max_length 8: add text"),
    ],
)
def test_what_gives_no_block_is_named_with_its_line(tmp_path, tokenizer, text, problem):
    """Before anything is trained."""
    (path := tmp_path / "a.jsonl").write_text(text)

    with pytest.raises(DataError, match=re.escape(problem)):
        blocks(path, "train", 8, tokenizer)


def test_blocks_of_a_file_that_is_not_there(tmp_path, tokenizer):
    """As a file of rows."""
    with pytest.raises(DataError, match=r"gone\.jsonl: cannot be read: No such file"):
        blocks(tmp_path / "gone.jsonl", "train", 8, tokenizer)


def test_blocks_go_with_nothing_that_needs_an_answer(tmp_path, tokenizer):
    """A canary is an instruction."""
    canary = "data.canary={instruction: Who, response: I}"
    with pytest.raises(ConfigError, match=r"data\.canary: cannot be combined with template blocks"):
        batches(tmp_path, tokenizer, "data.template=blocks", canary)


def test_fewer_blocks_than_asked_for(tmp_path, tokenizer):
    """The file, what was asked for and what there is."""
    short, settings = texts(tmp_path / "a.jsonl", "Twenty bytes of text"), ["data.template=blocks", "data.max_length=8"]
    with pytest.raises(ConfigError, match=r"data\.train_rows: should be at most 2, all of .*a\.jsonl \(got 3\)"):
        batches(tmp_path, tokenizer, *settings, f"data.train={short}", f"data.heldout={short}", "data.train_rows=3")


@pytest.mark.parametrize("content", ["", "[]", '{"version": "9"}'])
def test_a_tokenizer_whose_file_is_damaged_is_named(tmp_path, content):
    """Whatever the library raises for it."""
    (tmp_path / "tokenizer.json").write_text(content)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')

    with pytest.raises(WeightsDamaged, match=r"its tokenizer cannot be loaded .*copy or download its tokenizer files"):
        load_tokenizer(tmp_path)
