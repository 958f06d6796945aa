"""Rows from the hub: the hub library is replaced at its one function, its cache's layout and its errors are real."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import inspect
import io
import json
import os
import shutil
import sys
from types import SimpleNamespace

import huggingface_hub
import pytest
import tiny
from huggingface_hub import constants, errors
from rich.console import Console
from tiny_models import cut, flip

from tunecheck import runner as runner_module
from tunecheck.assets import hub as models_hub
from tunecheck.assets import rows as data_rows
from tunecheck.assets.rows import resolve
from tunecheck.cli import main
from tunecheck.config import find_run, load_data, load_run
from tunecheck.core.errors import ConfigError, DataError
from tunecheck.core.evidence import AttemptOutcome, Dataset, DataSplit
from tunecheck.core.evidence import Weights as WeightsRecord
from tunecheck.core.paths import shipped_folder
from tunecheck.report.files import escaped, junit_xml, summary_markdown
from tunecheck.report.terminal import print_report
from tunecheck.results import Report, RunReport, data_words, summarize
from tunecheck.runner import Runner
from tunecheck.runner.outcome import Outcome
from tunecheck.training.data import Row, encode, read_rows

TOKEN = "hf_verysecretindeed"
FILE = "yahma/alpaca-cleaned/alpaca_data_cleaned.json"
REVISION = "12567cabf869d7c92e573c7c783905fc160e9639"


def records(count):
    """Rows as Alpaca has them; every third has an input."""
    return [
        {"instruction": f"Name fact {i}.", "input": f"Part {i}" if i % 3 == 0 else "", "output": f"Fact {i} is so."}
        for i in range(count)
    ]


class Hub:
    """One file; a download is laid out as the hub library does: a blob named by its digest, and a link to it."""

    def __init__(self, cache):
        self.cache = cache
        self.answer = json.dumps(records(60)).encode()
        self.downloads = []
        self.harm = None
        self.harm_once = None

    def hf_hub_download(self, repository, file, *, revision, force_download=False, local_files_only=False, **options):
        """As huggingface_hub.hf_hub_download; an answer that is an exception is raised."""
        path = self.cache / f"datasets--{repository.replace('/', '--')}" / "snapshots" / revision / file
        if local_files_only:
            if not path.exists():
                raise errors.LocalEntryNotFoundError("nothing here")
            return str(path)
        if isinstance(self.answer, BaseException):
            raise self.answer
        self.downloads.append((repository, file, revision, force_download, options))
        if force_download or not path.exists():
            self._lay_out(path)
        harm, self.harm_once = self.harm or self.harm_once, None
        if harm is not None:
            harm(path.resolve())
        return str(path)

    def _lay_out(self, path):
        blob = self.cache / "blobs" / hashlib.sha256(self.answer).hexdigest()
        for folder in (path.parent, blob.parent):
            folder.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        blob.write_bytes(self.answer)
        path.symlink_to(os.path.relpath(blob, path.parent))


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """A hub that can be reached and holds 60 rows; no token."""
    made = Hub(tmp_path / "hub")
    monkeypatch.setenv("TUNECHECK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.example")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", made.hf_hub_download)
    monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", lambda *_, **options: None)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    monkeypatch.setattr(models_hub.network, "hub_problem", lambda endpoint: None)
    return made


def data(**changed):
    """The description of alpaca-cleaned with 20 + 5 rows, or as changed."""
    described = load_data("alpaca-cleaned")
    asked = described.hub.model_copy(update={"rows": 20, "heldout_rows": 5, **changed})
    return described.model_copy(update={"hub": asked})


def texts(described):
    """The rows of both splits."""
    return {
        split: [(row.instruction, row.response) for row in read_rows(described.file(split), split)]
        for split in ("train", "heldout")
    }


def answered(kind, status):
    """The hub library's error for an answer with this HTTP status."""
    client = sys.modules[errors.HTTPError.__module__.partition(".")[0]]  # httpx or httpx2
    request = client.Request("GET", f"https://hub.example/api?token={TOKEN}")
    return kind(f"{status} for {TOKEN}", response=client.Response(status, request=request))


# Fetched and cached.


def test_the_pinned_file_becomes_two_splits(fake, said):
    """An input stands below its instruction; the record says where the rows are from, down to their digests."""
    record, found = resolve(data())
    rows = texts(found)

    assert (record.source, record.identifier, record.revision) == ("hub", FILE, REVISION)
    assert (record.rows, record.heldout_rows) == (20, 5) == tuple(map(len, rows.values()))
    assert record.file_sha256 == hashlib.sha256(fake.answer).hexdigest()
    both = found.file("train").read_bytes() + found.file("heldout").read_bytes()
    assert record.sha256 == hashlib.sha256(both).hexdigest()
    assert (record.instead_of, record.notes) == ("", ("60 rows in the file; left out: none",))
    number = next(i for i in range(0, 60, 3) if any(f"fact {i}." in row[0] for row in rows["train"]))
    assert (f"Name fact {number}.\n\nPart {number}", f"Fact {number} is so.") in rows["train"]
    assert said == [
        f"alpaca-cleaned: fetching {FILE.rpartition('/')[0]} at {REVISION[:12]} from the hub",
        "alpaca-cleaned: 60 rows in the file; left out: none",
    ]
    options = {"repo_type": "dataset", "etag_timeout": 5.0}
    assert fake.downloads == [("yahma/alpaca-cleaned", "alpaca_data_cleaned.json", REVISION, False, options)]


def test_a_second_time_the_hub_is_not_asked(fake, monkeypatch, tmp_path):
    """Not even whether it is there, nor for the file that the rows were made from."""
    first = resolve(data())
    shutil.rmtree(tmp_path / "hub")
    monkeypatch.setattr(models_hub.network, "hub_problem", lambda endpoint: pytest.fail("the hub was asked"))

    assert resolve(data()) == first


def test_other_rows_are_another_folder(fake):
    """Whatever changes the choice: numbers, or a max_length that lets other rows in."""
    shorter = data().model_copy(update={"max_length": 256})
    files = {resolve(each)[1].train for each in (data(), data(rows=21), data(heldout_rows=6), shorter)}

    assert len(files) == 4


def test_rows_that_were_changed_in_the_cache_are_made_again(fake, said):
    """From the hub's file, and said aloud."""
    record, found = resolve(data())
    flip(found.file("train"))

    again = resolve(data())[0]
    assert dataclasses.replace(again, repairs=()) == record
    assert any("train.jsonl is damaged" in line for line in said)
    assert "train.jsonl is damaged" in again.repairs[0]
    assert resolve(data())[0].repairs == again.repairs, "later traces tell it too"
    assert hashlib.sha256(found.file("train").read_bytes() + found.file("heldout").read_bytes()).hexdigest() == (
        record.sha256
    )


def test_changed_rows_without_a_network_are_an_error(fake, monkeypatch, tmp_path):
    """Other rows would hide the damage."""
    found = resolve(data())[1]
    flip(found.file("train"))
    shutil.rmtree(tmp_path / "hub")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    with pytest.raises(DataError, match=r"is damaged.*cannot be fetched again: HF_HUB_OFFLINE is set"):
        resolve(data())


# Not to be had.


@pytest.mark.parametrize("reason", ["HF_HUB_OFFLINE is set", "hub unreachable (hub.example:443: no answer within 2 s)"])
def test_without_a_network_the_shipped_rows_are_used(fake, monkeypatch, reason, said):
    """Said aloud and recorded with the reason; never silently."""
    for module in ("hub", "rows"):
        monkeypatch.setattr(f"tunecheck.assets.{module}.offline", lambda: reason)
    record, found = resolve(data())

    why = f"{reason}; yahma/alpaca-cleaned: not whole in the hub's local cache"
    assert (record.source, record.identifier, record.revision) == ("shipped", "data/rust-python-facts", "")
    assert (record.rows, record.heldout_rows, record.file_sha256) == (240, 48, "")
    assert record.instead_of == f"{FILE}: {why}"
    assert said == [f"alpaca-cleaned: {why}; the rows of data/rust-python-facts are used instead"]
    assert found == data()


def test_without_a_network_the_hubs_own_cache_is_still_good(fake, monkeypatch):
    """A pinned revision is the same with and without it."""
    fake.hf_hub_download("yahma/alpaca-cleaned", "alpaca_data_cleaned.json", revision=REVISION)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    assert resolve(data())[0].source == "hub"


@pytest.mark.parametrize(
    ("error", "token", "sentence"),
    [
        (
            answered(errors.GatedRepoError, 401),
            None,
            "accept the licence at https://hub.example/datasets/yahma/alpaca-cleaned",
        ),
        (answered(errors.HfHubHTTPError, 401), TOKEN, "refuses the token (401): it is wrong or expired"),
        (answered(errors.RepositoryNotFoundError, 404), None, "the hub has no such repository (404)"),
        (answered(errors.RevisionNotFoundError, 404), None, "does not have the pinned revision; correct `revision`"),
        (answered(errors.RemoteEntryNotFoundError, 404), None, "has no such file; correct `file`"),
        (answered(errors.HfHubHTTPError, 503), None, "answered with status 503"),
        (errors.LocalEntryNotFoundError(TOKEN), None, "the connection to the hub broke off"),
        (TimeoutError(TOKEN), None, "the hub did not answer in time"),
    ],
)
def test_a_refusal_is_recorded_in_a_sentence(fake, monkeypatch, error, token, sentence, said):
    """Without the token, and the shipped rows are used."""
    fake.answer = error
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: token)
    record, _ = resolve(data())

    assert record.source == "shipped"
    assert sentence in record.instead_of
    assert any(sentence in line for line in said)
    assert TOKEN not in f"{record}{said}"


# Damage.


@pytest.mark.parametrize("harm", [cut, flip])
def test_a_damaged_download_is_fetched_once_more(fake, harm, said):
    """The hub's own digest finds it where the YAML pins none."""
    fake.harm_once = harm
    record, _ = resolve(data())

    assert [download[3] for download in fake.downloads] == [False, True]
    assert any("is damaged" in line and "Fetching once more" in line for line in said)
    assert record.file_sha256 == hashlib.sha256(fake.answer).hexdigest()
    assert len(record.repairs) == 1


def test_a_file_that_stays_damaged_is_an_error(fake, tmp_path):
    """No other rows hide it, and nothing of it is kept."""
    fake.harm = cut

    with pytest.raises(DataError, match=r"is damaged: SHA-256 of its \d+ bytes is .*, expected .*What to do: delete"):
        resolve(data())
    assert [path.name for path in (tmp_path / "cache" / "data" / "alpaca-cleaned").glob("[!.]*")] == []


def test_a_pinned_digest_is_held(fake):
    """Against a file that the hub vouches for too."""
    with pytest.raises(DataError, match=f"expected {'0' * 64}"):
        resolve(data(sha256="0" * 64))


def test_half_a_file_that_no_digest_covers_is_not_json(fake, monkeypatch):
    """Where the hub's cache holds copies instead of links."""
    monkeypatch.setattr("tunecheck.assets.rows.blob_digest", lambda path: None)
    fake.harm = cut

    with pytest.raises(DataError, match="is damaged: not JSON: "):
        resolve(data())
    assert len(fake.downloads) == 2


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"rows": []}, "a list of rows is expected, it holds dict"),
        (["Name a fact."], "row 0 is not an object with the texts instruction, output"),
        ([*records(3), {"instruction": "Name it."}], "row 3 is not an object"),
        ([{"instruction": "Name it.", "output": 7}], "row 0 is not an object"),
        ([{"instruction": "Name it.", "output": "So.", "input": None}], "row 0 is not an object"),
        (records(24), "20 + 5 rows are requested (data.hub.rows, data.hub.heldout_rows) but only 24 can be used"),
        (
            [],
            "but only 0 can be used: 0 rows in the file; left out: none. What to do: request fewer, or raise data.max",
        ),
    ],
)
def test_a_file_of_something_else_is_an_error(fake, content, sentence):
    """With the file, its revision and what is wrong; it is not fetched again, since it is what was pinned."""
    fake.answer = json.dumps(content).encode()

    with pytest.raises(DataError) as error:
        resolve(data())
    assert sentence in str(error.value)
    assert f"{FILE} at {REVISION[:12]}: " in str(error.value)
    assert len(fake.downloads) == 1


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), RuntimeError("IO: (os error 28)")])
def test_a_disk_that_fills_up_is_told_as_such(fake, error):
    """It is this machine's, not the hub's."""
    fake.answer = error

    with pytest.raises(DataError, match=r"no space left in .*hub: about 50,000,000 bytes are needed, .* HF_HOME"):
        resolve(data())


def test_a_file_that_may_not_be_read_is_told_as_such(fake):
    """With its name and the reason."""
    fake.answer = PermissionError(errno.EACCES, "Permission denied", "/somewhere/blob")

    with pytest.raises(DataError, match=r"/somewhere/blob: Permission denied\. What to do: make the file readable"):
        resolve(data())


def test_shipped_rows_that_cannot_be_read_are_an_error(tmp_path):
    """Also without a hub."""
    gone = load_data("rust-python-facts").model_copy(update={"train": str(tmp_path / "gone.jsonl")})

    with pytest.raises(DataError, match=r"gone.jsonl: cannot be read: No such file"):
        resolve(gone)


def test_a_users_own_files_are_called_local(tmp_path):
    """Rows are counted as they are read."""
    (tmp_path / "mine.jsonl").write_text('{"instruction": "a\\u2028b", "response": "c"}\n')
    mine = load_data("rust-python-facts").model_copy(update={"train": str(tmp_path / "mine.jsonl")})
    record, found = resolve(mine)

    assert (record.source, record.rows, record.heldout_rows, found) == ("local", 1, 48, mine)
    assert record.identifier == f"{tmp_path}/mine.jsonl, data/rust-python-facts/heldout.jsonl"


# Which rows.


def chosen(listed, **asked):
    """The splits of these records."""
    described = data(**{"rows": 4, "heldout_rows": 2, **asked})
    train, heldout, note = data_rows.splits(listed, described.hub, 128)
    return SimpleNamespace(train=train, heldout=heldout, note=note)


def test_rows_that_cannot_be_used_are_left_out_and_counted():
    """Blank, broken, long and repeated ones, each with its reason."""
    poor = [
        {"instruction": " ", "output": "Yes."},
        {"instruction": "What is nothing?", "input": "", "output": "\n"},
        {"instruction": "What is half a character?", "output": "\ud83d"},
        {"instruction": "What is long?", "output": "é" * 40},
        {"instruction": "NAME  fact 3.", "input": "part 3", "output": "Again."},
    ]
    found = chosen(records(12) + poor)

    assert found.note == (
        "17 rows in the file; left out: 3 without instruction or output, 1 longer than 64 bytes, "
        "1 with a repeated instruction"
    )


def test_no_text_is_in_both_splits():
    """Neither instruction nor answer, as the probe that audits them counts: case and spacing aside."""
    rows = [{**record, "output": "YES" if i % 2 else " yes"} for i, record in enumerate(records(40))]
    rows += records(60)[40:]
    held = {text.casefold().strip() for pair in chosen(rows, heldout_rows=8).heldout for text in pair}
    found = chosen(rows, heldout_rows=8)
    trained = {text.casefold().strip() for pair in found.train for text in pair}

    assert "yes" in held
    assert held & trained == set()
    assert "with a text of the held-out rows" in found.note


def test_the_choice_does_not_follow_the_files_order():
    """And more training rows leave the held-out ones as they are."""
    found = chosen(records(60))

    assert chosen(records(60)[::-1]) == found
    assert chosen(records(60), rows=30).heldout == found.heldout
    assert chosen(records(60), rows=30).train[:4] == found.train


class Bytes:
    """A tokenizer at its worst: a token for each byte, and two around each text that may have them."""

    eos_token_id = 257

    def __call__(self, text, add_special_tokens=True):
        """As transformers' tokenizers answer."""
        return {"input_ids": [256, *text.encode(), 258] if add_special_tokens else list(text.encode())}


@pytest.mark.parametrize("text", ["x", "é", "語", "🙂"])
def test_the_longest_row_fits_whatever_the_tokenizer(text):
    """A token for each byte is the worst that there is."""
    longest = data_rows.longest_row_bytes(512)
    output = text * ((longest - 5) // len(text.encode()))
    rows = [{"instruction": f"Fac{i}", "output": f"{i}{output}"} for i in range(2)]
    (pair,), _, _ = data_rows.splits(rows, data(rows=1, heldout_rows=1).hub, 512)
    row = Row("train:0", *pair)

    assert longest - 8 < len("".join(pair).encode()) <= longest
    assert len(encode(row, Bytes(), "alpaca").input_ids) <= 512


# In a run.


def run(*settings):
    """The tiny quick run on rows of the hub."""
    asked = ["data=alpaca-cleaned", "data.hub.rows=20", "data.hub.heldout_rows=5", "data.pad_to_sequence_len=false"]
    return load_run(find_run("quick/smollm2-135m-qlora"), [*tiny.RANDOM, *asked, *settings])


def test_a_run_trains_on_the_hubs_rows_and_its_trace_says_so(fake, tmp_path):
    """The child's own digest is the record's, the splits are found disjoint, and the report's row names it all."""
    asked = run("training.max_steps=3")
    trace = Runner(folder=tmp_path / "runs", environment={}, gpu=False).execute(asked)
    record, seen = trace.one(Dataset), trace.one(DataSplit)

    assert trace.main.finished, trace.main.end
    assert (record.source, record.sha256) == ("hub", seen.dataset_sha256)
    assert (seen.train_rows, seen.heldout_rows, seen.shared) == (20, 5, ())
    assert trace.settings["data"]["train"] == "data/rust-python-facts/train.jsonl"
    checks = asked.resolved_checks()
    assert all(checks[name](trace).passed for name in ("heldout_is_disjoint", "row_order", "tokens_match_template"))
    told = summarize(trace, [], trace_file="t.jsonl", seconds=1.0)
    assert told.data == f"hub {FILE}@{REVISION} {record.sha256[:12]} 20 + 5 rows"
    assert not told.data_instead_of


@pytest.fixture
def requests(monkeypatch):
    """What children were asked for; none is started."""
    made = []

    def run_child(request, **options):
        made.append(request)
        return Outcome(AttemptOutcome.FINISHED)

    monkeypatch.setattr(runner_module, "run_child", run_child)
    monkeypatch.setattr(runner_module.models, "resolve", lambda model, **_: (Weights(), None))
    return made


class Weights:
    """Weights that nobody loads."""

    source, identifier = "random", "two layers"


def test_the_child_gets_files_and_the_fingerprint_stays(fake, requests, tmp_path, said):
    """Nothing of this machine's cache is in what is compared between machines."""
    trace = Runner(folder=tmp_path, environment={}, gpu=False).execute(run())
    asked = requests[0]

    assert asked.run.data.file("train").is_relative_to(tmp_path / "cache" / "data" / "alpaca-cleaned")
    assert asked.dataset.source == "hub"
    assert trace.header.fingerprint == run().fingerprint
    assert f"train on the CPU, random weights two layers, hub data {FILE}" in said[-1]


def test_a_run_without_the_hub_trains_on_the_shipped_rows(fake, requests, monkeypatch, tmp_path, said):
    """And says so before it begins."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    Runner(folder=tmp_path, environment={}, gpu=False).execute(run())

    assert requests[0].run.data == run().data
    assert requests[0].dataset.instead_of.startswith(f"{FILE}: HF_HUB_OFFLINE is set")
    assert "the rows of data/rust-python-facts are used instead" in said[0]


def test_rows_that_are_not_what_was_pinned_leave_the_run_unavailable(fake, requests, tmp_path):
    """No child is started."""
    fake.answer = b"{}"
    trace = Runner(folder=tmp_path, environment={}, gpu=False).execute(run())

    assert (trace.main.end.outcome, requests) == ("unavailable", [])
    assert "a list of rows is expected" in trace.main.end.detail


def test_every_report_tells_that_other_rows_were_trained(fake, monkeypatch, tmp_path):
    """Terminal, summary and JUnit: with the rows that were trained, and why not those that were asked for."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    told = RunReport(run="a", tier="full", model="b", outcome="pass", **_data_fields(resolve(data())[0]))
    made = Report(started_at="2026-11-21T04:04:30Z", seconds=1.0, verdict="pass", runs=(told,))
    out = io.StringIO()
    print_report(made, Console(width=400, no_color=True, force_terminal=False, file=out))

    sentence = f"trained on {told.data}, not on {FILE}: HF_HUB_OFFLINE is set; yahma/alpaca-cleaned: not whole"
    assert told.data.startswith("shipped data/rust-python-facts ")
    assert told.data.endswith(" 240 + 48 rows")
    assert f"full/a: {sentence}" in out.getvalue()
    assert escaped(f"full/a: {sentence}") in summary_markdown(made)
    assert "### Other data" in summary_markdown(made)
    assert f'name="data_instead_of" value="{told.data_instead_of}"' in junit_xml(made)


def _data_fields(record):
    """What a report's row says of an attempt with this record."""
    return {"data": data_words(record), "data_instead_of": record.instead_of}


# Asked for by hand.


def test_fetch_takes_a_data_sets_name(fake, capsys):
    """The last line is the folder."""
    fake.answer = json.dumps(records(700)).encode()

    assert main(["fetch", "alpaca-cleaned"]) == 0
    printed = capsys.readouterr()
    assert f"alpaca-cleaned: hub {FILE}, 512 + 64 rows, sha256 " in printed.out
    assert sorted(os.listdir(printed.out.splitlines()[-1])) == [
        "heldout.jsonl",
        "manifest.json",
        "stamps.json",
        "train.jsonl",
    ]


def test_fetch_does_not_take_other_rows(fake, monkeypatch, capsys):
    """Whoever fetches wants the hub's."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    assert main(["fetch", "alpaca-cleaned"]) == 6
    assert "HF_HUB_OFFLINE is set" in (told := capsys.readouterr().err)
    assert "run `tunecheck fetch alpaca-cleaned` where there is a network" in told


def test_fetch_says_where_shipped_rows_are(capsys):
    """There is nothing to bring."""
    assert main(["fetch", "rust-python-facts"]) == 0
    assert "rust-python-facts: shipped data/rust-python-facts, 240 + 48 rows" in capsys.readouterr().out


def test_fetch_takes_both_where_a_model_and_a_data_set_share_a_name(capsys, monkeypatch, tmp_path):
    """The rows, then the weights; one's own files may be named alike."""
    shipped = shipped_folder() / "configs" / "data"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "smollm2-135m.yaml").write_text((shipped / "rust-python-facts.yaml").read_text())
    shutil.copytree(shipped / "rust-python-facts", tmp_path / "data" / "rust-python-facts")
    monkeypatch.setenv("TUNECHECK_CONFIGS", str(tmp_path))
    weights = WeightsRecord(
        model="smollm2-135m", source="hub", identifier="a/b", revision="", sha256="0", pretrained=True
    )
    monkeypatch.setattr("tunecheck.assets.resolve", lambda model, **_: (weights, tmp_path))

    assert main(["fetch", "smollm2-135m"]) == 0
    printed = capsys.readouterr().out
    assert "smollm2-135m: local data/rust-python-facts, 240 + 48 rows" in printed
    assert "smollm2-135m: hub a/b, sha256 0" in printed


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("data.hub.revision=main", "data.hub.revision: should match pattern"),
        ("data.hub.file=rows.parquet", "data.hub.file: should match pattern"),
        ("data.hub.rows=0", "data.hub.rows: should be greater than 0"),
        ("data.hub.row=9", "data.hub.row: unknown key (did you mean 'rows'?); known keys: file, heldout_rows, id"),
        ("data.hub={id: a/b}", "data.hub.revision: is missing"),
        ("data.hub=yes", "data.hub: should be a section"),
    ],
)
def test_a_wrong_key_of_the_section_is_named(setting, words):
    """With its place, as all others."""
    with pytest.raises(ConfigError) as error:
        load_run(find_run("full/llama-7b-qlora"), [setting])
    assert f"--set {setting}: {words}" in str(error.value)


def test_a_users_own_file_does_not_give_way_unnoticed(tmp_path):
    """Set beside the hub's rows it would be used only without a network."""
    (tmp_path / "mine.jsonl").write_text('{"instruction": "a", "response": "b"}\n')
    mine = f"data.train={tmp_path}/mine.jsonl"
    replaced = r"data\.train: is replaced by the rows of data\.hub: add --set data\.hub=null"
    with pytest.raises(ConfigError, match=replaced):
        load_run(find_run("full/llama-7b-qlora"), [mine])

    alone = load_run(find_run("full/llama-7b-qlora"), [mine, "data.hub=null", "evaluation.rows=1"])
    assert alone.data.file("train") == tmp_path / "mine.jsonl"


def test_the_full_tier_asks_for_alpaca():
    """At 512 tokens, with enough rows for its evaluations."""
    full = load_run(find_run("full/llama-7b-qlora"))

    assert (full.data.hub.id, full.data.hub.revision) == ("yahma/alpaca-cleaned", REVISION)
    assert (full.data.max_length, full.data.pad_to_sequence_len) == (512, True)
    assert min(full.data.hub.rows, full.data.hub.heldout_rows) >= full.evaluation.rows


def test_the_installed_library_takes_what_it_is_given():
    """The function that is replaced above has these parameters, in huggingface_hub 1 and 2."""
    download = inspect.signature(huggingface_hub.hf_hub_download).parameters

    assert {"repo_type", "revision", "etag_timeout", "force_download", "local_files_only"} <= download.keys()
