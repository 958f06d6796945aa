"""Whatever is typed or lies in a file: a message and the exit status of docs/cli.md's table, never a traceback."""

from __future__ import annotations

import errno
import json
import os

import pytest
import traces
from sessions import write_trace

from tunecheck.cli import main
from tunecheck.config import find_run, load_run
from tunecheck.core.errors import ConfigError
from tunecheck.core.trace import SCHEMA, encode
from tunecheck.memory import measured_peaks
from tunecheck.memory.prediction import cached_prediction

RUN = "quick/smollm2-135m-qlora"
HEADER = encode(traces.healthy().header)


def edited(**changes):
    """The header of a healthy trace with other keys in its run."""
    record = json.loads(HEADER)
    return json.dumps({**record, "run": {**record["run"], **changes}})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no run header"),
        (bytes(range(256)) * 20, "no run header"),
        (b"5\n", "not a trace record: '5'"),
        (b"[1, 2]\n", "not a trace record"),
        (f'{{"kind": "RunHeader", "schema": {SCHEMA}}}\n'.encode(), "not a trace record"),
        (b'{"kind": "RunHeader", "schema": 99, "tunecheck_version": "9"}\n', "trace schema 99, this tunecheck reads"),
        (f"{edited(checks=None)}\n".encode(), "not a trace record"),
        (f"{edited(model={}, features=5)}\n".encode(), "not a trace record"),
        (f"{edited(model={})}\n".encode(), "its header describes no run: the header of the trace lacks model.name"),
        ("\ufeff{}\n🦀\n".encode(), "not a trace record"),
    ],
    ids=["empty", "binary", "a number", "a list", "cut", "newer", "no checks", "features", "no model", "not ASCII"],
)
def test_a_file_that_is_no_trace_is_a_wrong_request(capsys, tmp_path, content, words):
    """To judge, as well as alone in a session's folder, whose page then says so."""
    path = tmp_path / "quick-run.jsonl"
    path.write_bytes(content)

    assert main(["judge", str(path)]) == 4
    assert words in capsys.readouterr().err
    assert main(["page", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    "changes",
    [{"model": "nan"}, {"checks": True}, {"premises": 5}, {"turn": "x"}, {"features": [1]}, {"smoothing": []}],
    ids=lambda changes: next(iter(changes)),
)
@pytest.mark.parametrize("where", ["header", "attempt"])
def test_a_key_of_another_type_is_refused_where_a_trace_is_read(capsys, tmp_path, where, changes):
    """By every command that reads one, in the header or in what an attempt changes of it."""
    path = tmp_path / "quick-run.jsonl"
    write_trace(path, traces.healthy())
    header, start, *rest = path.read_text().splitlines()
    if where == "header":
        header = edited(**changes)
    else:
        start = json.dumps({**json.loads(start), "changes": changes})
    path.write_text("\n".join([header, start, *rest]) + "\n")
    for command in (["judge"], ["rows"], ["explain"], ["compare", str(path)]):
        assert main([*command, str(path)]) == 4
        said = capsys.readouterr().err
        assert f"{path}" in said
        assert "an error of tunecheck itself" not in said
        assert next(iter(changes)) in said


def test_an_attempt_that_changes_a_section_that_is_not_there_is_refused(capsys, tmp_path):
    """Its path leads nowhere."""
    path = tmp_path / "quick-run.jsonl"
    write_trace(path, traces.healthy())
    header, start, *rest = path.read_text().splitlines()
    start = json.dumps({**json.loads(start), "changes": {"nowhere.at_all": 1}})
    path.write_text("\n".join([header, start, *rest]) + "\n")

    assert main(["judge", str(path)]) == 4
    assert "an attempt changes what its header does not have: 'nowhere'" in capsys.readouterr().err


@pytest.mark.parametrize("size", ["9" * 400 + "GiB", "9" * 300 + "GiB", "9" * 5000 + "GiB"])
def test_a_size_that_no_machine_has_is_a_usage_error(capsys, size):
    """On the command line and in a configuration."""
    with pytest.raises(SystemExit) as ended:
        main(["list", "--needs", "--vram-cap", size])
    assert ended.value.code == 4
    assert main(["show", RUN, "--set", f"vram={size}"]) == 4
    assert main(["show", RUN, "--set", f"deadline={size.replace('GiB', 'h')}"]) == 4
    assert "Traceback" not in capsys.readouterr().err


def test_a_folder_in_a_traces_place_and_a_file_in_a_folders(capsys, tmp_path):
    """Each is named."""
    (tmp_path / "trace.jsonl").mkdir()
    (tmp_path / "file").touch()

    assert main(["judge", str(tmp_path / "trace.jsonl")]) == 4
    assert "holds no trace (*.jsonl); name a session folder" in capsys.readouterr().err
    assert main(["page", str(tmp_path / "file")]) == 4
    assert "holds neither verdict.json nor a trace" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_trace_that_may_not_be_read(capsys, tmp_path):
    """The system's own word for it."""
    path = tmp_path / "trace.jsonl"
    path.write_text(HEADER)
    path.chmod(0)

    assert main(["judge", str(path)]) == 4
    assert "cannot be read: Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["rows", "judge", "explain", "page", "fallback-table", "compare", "fleet"])
def test_a_session_of_another_user_is_named(capsys, monkeypatch, tmp_path, command):
    """Only the owner can read a session's folder; root, as which these tests may run, reads all."""
    stat = os.stat

    def refused(path, *arguments, **settings):
        if str(path).startswith(str(tmp_path / "theirs")):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, *arguments, **settings)

    monkeypatch.setattr(os, "stat", refused)
    where = str(tmp_path / "theirs" / "20261128T000000Z-1")
    asked = {"compare": [where], "fleet": ["--judge"]}.get(command, [])
    assert main([command, *asked, where]) == 4
    assert f"{where}"[:60] in (said := capsys.readouterr().err)
    assert "Permission denied" in said


@pytest.mark.parametrize("command", [["list"], ["run", "quick"], ["watch", "--", "true"], ["history"], ["rows"]])
def test_a_current_folder_that_was_removed_is_named(capsys, monkeypatch, tmp_path, command):
    """As a shell keeps it that stands in a workspace which was cleaned."""
    for name in ("CONFIGS", "REPORTS", "HISTORY"):
        monkeypatch.delenv(f"TUNECHECK_{name}", raising=False)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    assert main(command) == 4
    assert "the current folder: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "command"),
    [
        ("CACHE", ["list", "--needs"]),
        ("CACHE", ["fetch", "tiny-llama"]),
        ("HISTORY", ["history"]),
        ("CONFIGS", ["list"]),
    ],
)
def test_a_home_that_nobody_knows_is_named(capsys, monkeypatch, variable, command):
    """As of a container's user without a name; a session goes on without its history."""
    monkeypatch.setenv(f"TUNECHECK_{variable}", "~nobody-of-that-name/x")

    assert main(command) == 4
    assert "~nobody-of-that-name/x: there is no such home directory; set HOME" in capsys.readouterr().err
    if variable == "HISTORY":
        assert isinstance(measured_peaks("a fingerprint"), dict)


def test_an_expectation_of_a_file_is_not_blamed_on_the_command_line(capsys, monkeypatch, tmp_path):
    """Where nobody typed it."""
    (tmp_path / "tunecheck.toml").write_text("[expect]\nnosuch = 1\n")
    monkeypatch.chdir(tmp_path)

    assert main(["watch", "--", "true"]) == 4
    assert "tunecheck.toml: expect nosuch=1: no key is called 'nosuch'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "quick/smolm2-135m-qlora"], "did you mean 'quick/smollm2-135m-qlora'?"),
        (["show", ""], "no run is called ''"),
        (["show", "../../etc/passwd"], "no run is called"),
        (["show", "ünï/çødé🦀"], "no run is called 'ünï/çødé🦀'"),
        (["estimate", "nope"], "no run is called 'nope'"),
        (["strategies", "qwen"], "configs/models has no 'qwen'"),
        (["fetch", "../x"], "configs/models has no '../x'"),
        (["page", "x" * 300], "File name too long; use another path"),
        (["compare", "x" * 300, "x" * 300], "File name too long; use another path"),
        (["show", RUN, "--set", f"data.train={'x' * 300}"], "data.train: there is no file 'xxx"),
        (["show", RUN, "--set", 'data.train="\\0"'], "data.train: there is no file '\\x00'"),
    ],
)
def test_a_name_that_there_is_not_is_a_wrong_request(capsys, arguments, words):
    """With those that there are, or the nearest of them."""
    assert main(arguments) == 4
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("training.learning_rate=.nan", "should be a finite number (got nan)"),
        ("training.learning_rate=1e400", "should be a finite number (got inf)"),
        ("evaluation.rows=1e999", "should be a valid integer (got inf)"),
        ("evaluation.rows=99999999999999999999999999", "evaluation.rows: should be at most 240"),
        ("training.seed=🦀", "should be a valid integer (got '🦀')"),
        ('lora.target_modules=[""]', "'' is in no layer"),
        ("lora.target_modules=[q_proj, q_proj]", "lora.target_modules.1: 'q_proj' is given twice: keep one of them"),
        ("lora.target_modules=[input_layernorm]", "'input_layernorm' is in no layer; linear layers here"),
        (
            "model.architecture.num_attention_heads=7",
            "should divide hidden_size, 576, where head_dim is not given (got 7)",
        ),
        ("model.architecture.num_key_value_heads=2", "should divide num_attention_heads, 9 (got 2)"),
        ("training=5", "should be a section"),
        ("model=[]", "configs/models has no []"),
        ("=1", "write it as section.key=value"),
        ("", "write it as section.key=value"),
    ],
)
def test_a_value_that_cannot_be_is_a_wrong_request(capsys, setting, words):
    """With the value that was given."""
    assert main(["show", RUN, "--set", setting]) == 4
    assert words in capsys.readouterr().err


def test_a_slip_in_the_number_of_layers_is_answered_at_once(capsys):
    """No list of a billion tensors is made to look up the names in one."""
    assert main(["show", RUN, "--set", "model.architecture.num_hidden_layers=99999999"]) == 0
    assert "num_hidden_layers: 99999999" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "1:1: a mapping of keys to values is expected"),
        (b"- a\n- b\n", "1:1: a mapping of keys to values is expected"),
        (b"model:\tsmollm2-135m\n\tdata: x\n", "1:7: not valid YAML: found character '\\t'"),
        (b"\x00\xff", "cannot be read: 'utf-8' codec"),
        ("model: smollm2-135m\n".encode("utf-16"), "cannot be read: 'utf-8' codec"),
        (b"vram: " + b"9" * 5000, "not valid YAML: Exceeds the limit"),
        ("模型: 🦀\n".encode(), "模型: unknown key"),
        (b"\xef\xbb\xbfmodel: nope\n", "1:1: model: configs/models has no 'nope'"),
    ],
    ids=["empty", "a list", "tabs", "binary", "UTF-16", "a huge number", "not ASCII", "a byte order mark"],
)
def test_a_file_that_is_no_configuration_is_told_with_its_place(tmp_path, content, words):
    """A byte order mark is none of the file's columns."""
    path = tmp_path / "quick" / "run.yaml"
    path.parent.mkdir()
    path.write_bytes(content)

    with pytest.raises(ConfigError) as caught:
        load_run(path)
    assert words in str(caught.value)


def test_a_cache_that_is_a_file_costs_no_prediction(capsys, monkeypatch, tmp_path):
    """It is neither read nor kept, and fetching into it could not be judged: 6."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("TUNECHECK_CACHE", str(tmp_path / "file"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    assert cached_prediction(load_run(find_run(RUN))) is None
    assert main(["fetch"]) == 6
    assert "cannot be used: Not a directory. What to do: give write access" in capsys.readouterr().err
