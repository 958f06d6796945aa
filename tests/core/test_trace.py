"""A trace comes back from its file as it was written, and a file that is none says so with its line."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
from metered import health, merging, reading_back, sample, telemetry
from traces import LORA, attempt, healthy, with_record

from tunecheck.core import evidence as e
from tunecheck.core.errors import MissingEvidence, TraceError
from tunecheck.core.evidence import RECORDS, Record
from tunecheck.core.trace import SCHEMA, Attempt, Trace, TraceWriter, decode, encode, read

HEALTHY = healthy()
START, END = HEALTHY.main.start, e.AttemptEnd(outcome=e.AttemptOutcome.FINISHED, detail="", seconds=1.0)
STEP = HEALTHY.steps[1]
EXAMPLES: list[Record] = [
    HEALTHY.header,
    *(record for run in HEALTHY.attempts for record in (run.start, *run.records, run.end) if record is not None),
    e.ProbeFailed(probe="OracleProbe", moment="backward of step 0", error="ValueError: boom (oracle.py:7)"),
    dataclasses.replace(STEP, allocated_bytes=123),
    dataclasses.replace(HEALTHY.one(e.Setup), cuda={"name": "H200", "uuid": None, "total_bytes": 150754820096}),
    dataclasses.replace(HEALTHY.one(e.Movement), unmoved=LORA),
    e.Replica(steps=1, digest="0123456789abcdef", tensors={LORA[0]: "89abcdef01234567"}, exchanges=7),
    e.Saved(writers=(0,)),
    e.Shard(step=1, held={"parameters": 4000}, even={"parameters": 4000}, larger=("parameters of norm.weight",)),
    e.Pace(step=1, seconds=0.25, tokens=1024),
    e.Joined(waited_seconds=0.5),
    e.LayerGradients(layers=30, error=1.4e-5, worst=17),
    e.Recomputation(layers=30, gradient_error=2e-7, repeat_error=1e-7),
    e.CurrentWeights(modules=31, error=4e-7, worst="model.layers.3.mlp.down_proj"),
    e.AdapterDropout(
        pairs=2304, dropped=231, alone=208, odd=0, neighbours=(1152, 774), siblings=(1152, 780), base_untouched=True
    ),
    e.PremisesOpen(reasons={"token_mean_loss": "the loss is the loop's own"}),
    e.UserCode(role="compute_loss", name="Mine.compute_loss", file="train.py", line=7),
    e.EvaluationRows(rows=50, among=3, trained=400),
    e.WindowEnded(steps=10),
    e.CutOff(tensors=("conv.bias",), passes=1, in_steps=4, one_sided=1, replaced=("cross",)),
    e.LoopEvaluations(passes=8, dropping=0),
    e.StepInputs(
        step=1,
        digests=("0123456789ab",),
        opaque=True,
        targets={"3": (0, 2)},
        aims=("ef",),
        written=(e.TargetWritten(tokens=4, digest="ab", ended=True, begun=True, filled=2, copied=True),),
        read=(e.RowRead(digest="cd", tokens=7, last=2, different=3),),
        equal=("input_ids_j", "input_ids_k"),
        unread=("positive",),
        continued=8,
        behind_padding=6,
        known=4,
        contrary=1,
        answers=8,
        answers_from=0.5,
        answers_to=1.0,
        paired=False,
        twins=True,
        constant="timesteps is 0",
        size=1.5,
    ),
    e.TokensLearned(outputs=404, rows=8, targets=100, most=90, unknown=3, runs=4, spelt=8),
    e.BestChosen(metric="eval_loss", greater=False),
    e.FileWritten(path="/home/model.safetensors"),
    e.RowsDrawn(
        columns=("0123456789abcdef",), tokens_alone=True, dataset_rows=40, batch=4, batches=5, passes=((3, 1), (1, 3))
    ),
    e.OwnRowsGradient(step=1, got=(0.5, -1.0), own=((0.5, -1.0), (0.25, 2.0)), tokens=12),
    e.RowsGiven(
        rows=16,
        dataset_rows=None,
        repeated=("'w1 w2'",),
        uncertain=0,
        end_tokens_supervised=16,
        end_tokens_masked=0,
        first_token_supervised=0,
        unsupervised=0,
        replayed=("'w3'",),
        resumed_after=8,
    ),
    e.BaseTokens(tokens=60, other=59, example="'a' is 3 in the rows, and 5 to the base"),
    e.ScheduleTaken(made_for=12, taken=24, optimizer_steps=12),
    e.OtherOptimizer(name="Adam", tensors=6, steps=0, without_gradient=0, model_steps=6, waiting=5),
    e.OtherOptimizer(name="Adam", tensors=6, model_steps=1, unheld=4),
    e.RanksScored(steps=10, begins=4, scored=12),
    e.Written(own=True, tensors=8, trained=7, earlier=LORA[:1], other=0, misnamed=("B of A",)),
    e.WrittenByScript(lines={LORA[0]: "train.py:40"}),
    e.TextsCut(max_length=64, texts=9, cut=4, kept_tokens=500, lost_tokens=40),
    e.StateLoaded(into="GPT", offered=12, taken=2, misnamed=("module.w (the model has w)",)),
    e.SourceRead(files=1, slips=(e.Slip(kind="variable", name="mask", file="train.py", line=3),)),
    e.SettingsGiven(settings=(e.Setting(kind="dropout", value=0.1, where="Dropout.p"),)),
    e.OtherModelDrops(model="Teacher", drawn=True),
    e.WeightsDrawn(model="BertModel", folder="bert-base", tensors=74),
    e.TokensReplaced(step=2, read="Who"),
    e.LearntBeside(tensors=2),
    e.ScoresGiven(
        functions=2,
        probabilities=("LogSoftmax of a Softmax",),
        softened=1,
        cut_at_0=1,
        far_off=1,
        ratios=2,
        off_policy=2,
    ),
    e.ScoresGiven(functions=1, probabilities=(), of_itself=1, nothing=("it is multiplied by zeros",)),
    e.WorkerBatches(workers=2, rounds=5, distinct=4, alike=1),
    e.LossDivided(micro_batches=4, by="compute_loss"),
    e.PairsGiven(step=1, pairs=4, alike=1),
    e.PreferencesLearned(
        where="'chosen' and 'rejected'",
        chosen_raised=4,
        chosen_lowered=0,
        rejected_raised=1,
        rejected_lowered=3,
        cancelled=2,
        of_others=1,
        compared=9,
        padded=4,
        padding_used=3,
        prompts=8,
        pulled_alike=7,
    ),
    e.AnswersRated(rows=4, kinds=("False", "True"), looked=4, again=1),
    e.PositionGradients(step=1, padded=12, padding_share=0.0, raising=40, raising_own=1, followed=4, asked_behind=1),
    e.RowsUsed(rows=24, beginnings=0, begun_late=0, answers=20, alike=20, loose=0),
    e.RowSpans(
        rows=(
            e.RowSpan(
                micro_batch=0,
                row="0123456789ab",
                answer="89abcdef0123",
                tokens=30,
                learned=9,
                first=20,
                column=32,
                behind=1,
                stretches=1,
                documents=1,
                last="\n",
                ended=True,
            ),
        ),
        end_tokens=(2,),
    ),
    e.Rates(tensors=8, wrong={LORA[0]: "0.0001, declared 1e-06 by loraplus_lr_embedding"}),
    e.Logged(steps=1, loss=4.25, learning_rate=None),
    e.EvaluationSeen(
        steps=4,
        split="eval",
        reported_loss=4.25,
        token_mean_loss=4.25,
        batch_mean_loss=None,
        tokens=96,
        training_modules_during=0,
        gradients_enabled=False,
        weights_changed=False,
        token_mean_uniform=6.5,
    ),
    *reading_back(adapter_effect=None).all(e.ReadBack),
    *merging(packed_left=LORA).all(e.Merged),
    e.Health(when="before"),
    health("after"),
    sample(60.0, others=(e.CardProcess(pid=7, name=None, used_bytes=None),), xids=(31,), events=("fatal poison",)),
    sample(60.0, sm_clock_mhz=None, clock_reasons=None),
    telemetry(processes_before=(e.CardProcess(pid=7, name="python3", used_bytes=1),)),
]


def write(path: Path, *records: Record) -> Path:
    """A trace file of these records."""
    writer = TraceWriter(path)
    writer.write(*records)
    return path


def lines_of(trace: Trace) -> list[Record]:
    """The records of a file that holds this trace."""
    runs = ((run.start, *run.records, *([run.end] if run.end else [])) for run in trace.attempts)
    return [trace.header, *(record for run in runs for record in run)]


def assert_same(ours: object, theirs: object) -> None:
    """Equal with equal types, NaN being equal to itself."""
    assert type(ours) is type(theirs)
    assert repr(ours) == repr(theirs)


@pytest.mark.parametrize("kind", RECORDS)
def test_every_kind_of_record_comes_back_equal(kind: str) -> None:
    """Types and all: tuples are no lists, whole floats no ints."""
    examples = [record for record in EXAMPLES if type(record).__name__ == kind]
    assert examples
    for record in examples:
        line = encode(record)
        assert "\n" not in line
        assert_same(decode(line)[1], record)
        assert decode(line) == (0, record)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e-310, 0.1 + 0.2, 3.0])
def test_floats_come_back_to_the_last_bit(value: float) -> None:
    """Non-finite ones too, though JSON has none, alone and in a mapping."""
    step = dataclasses.replace(STEP, loss=value)
    gradients = dataclasses.replace(HEALTHY.one(e.Gradients), norms={"lora_A": value, "lora_B": 1.0})
    for record in (step, gradients):
        line = encode(record)
        assert_same(decode(line)[1], record)
        json.loads(line, parse_constant=pytest.fail)


def test_a_whole_number_in_a_float_field_comes_back_as_float() -> None:
    """JSON written by other hands may say 3."""
    line = encode(STEP).replace(f'"loss": {STEP.loss}', '"loss": 3')
    assert_same(decode(line)[1], dataclasses.replace(STEP, loss=3.0))


@pytest.mark.parametrize(
    "text", ["two\nlines", "line\u2028separator", "next\x85line", "nan", '"quoted" \\', "héron 鷺 🪶"]
)
def test_any_text_stays_one_line_and_comes_back(text: str, tmp_path: Path) -> None:
    """Generated text holds what it likes."""
    generation = dataclasses.replace(HEALTHY.one(e.Generation), text=text)
    path = write(tmp_path / "trace.jsonl", HEALTHY.header, START, generation, END)
    assert read(path).one(e.Generation) == generation


def test_records_are_frozen_and_all_known() -> None:
    """A record that is not in RECORDS could be written but never read."""
    declared = {
        name: kind
        for name, kind in vars(e).items()
        if isinstance(kind, type) and issubclass(kind, Record) and kind is not Record
    }
    assert declared == RECORDS
    for kind in RECORDS.values():
        assert kind.__doc__
        example = next(r for r in EXAMPLES if type(r) is kind)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(example, dataclasses.fields(kind)[0].name, None)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "JSONDecodeError"),
        ("3", "AttributeError"),
        ("[]", "TypeError"),
        ("null", "AttributeError"),
        ('{"step": 1}', "KeyError: 'kind'"),
        ('{"kind": "Stepp"}', "KeyError: 'Stepp'"),
        ('{"kind": "Evaluation", "step": 1, "split": "probe", "loss": 1.0}', "tokens"),
        (
            '{"kind": "Evaluation", "step": 1, "split": "probe", "loss": 1.0, "tokens": 3, "x": 1}',
            "unknown fields ['x']",
        ),
        ('{"kind": "Evaluation", "step": 1, "split": "probe", "loss": "low", "tokens": 3}', "should be float"),
    ],
)
def test_what_is_no_record_is_refused(line: str, reason: str) -> None:
    """With the beginning of the line and the reason."""
    with pytest.raises(TraceError, match="not a trace record") as caught:
        decode(line)
    assert line[:40] in str(caught.value)
    assert reason in str(caught.value)


def test_a_whole_trace_comes_back(tmp_path: Path) -> None:
    """Header, attempts in order, and every record of each."""
    trace = with_record(healthy(precision="fp16", skipped_steps=1), e.Evaluation, 0, loss=math.inf)
    assert_same(read(write(tmp_path / "trace.jsonl", *lines_of(trace))), trace)


def test_a_line_is_on_disk_when_write_returns(tmp_path: Path) -> None:
    """A crash right after it loses nothing; a second writer continues the file."""
    path = tmp_path / "trace.jsonl"
    parent, child = TraceWriter(path), TraceWriter(path)
    parent.write(HEALTHY.header, START)
    assert read(path).main.records == ()
    child.write(STEP)
    assert read(path).main.records == (STEP,)
    parent.write(END)
    assert read(path).main.end == END


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_a_last_line_cut_in_half_is_dropped(tmp_path: Path, cut: int) -> None:
    """What came before it stays, and the attempt counts as unfinished."""
    path = write(tmp_path / "trace.jsonl", HEALTHY.header, START, STEP, HEALTHY.steps[2])
    path.write_bytes(path.read_bytes()[: -1 - cut])
    trace = read(path)
    assert trace.steps == [STEP]
    assert not trace.main.finished


def test_a_last_line_that_lacks_only_its_newline_is_kept(tmp_path: Path) -> None:
    """It is complete."""
    path = write(tmp_path / "trace.jsonl", HEALTHY.header, START, STEP)
    path.write_bytes(path.read_bytes()[:-1])
    assert read(path).steps == [STEP]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"kind": "Step", "step": 1', 'not a trace record: \'{"kind": "Step"'),
        ('{"instruction": "Who?", "response": "I."}', "KeyError: 'kind'"),
    ],
    ids=["cut off", "foreign"],
)
def test_a_bad_line_before_others_is_an_error_with_its_number(tmp_path: Path, line: str, reason: str) -> None:
    """It is no crash that explains it."""
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join([encode(HEALTHY.header), encode(START), line, encode(STEP), ""]), encoding="utf-8")
    with pytest.raises(TraceError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert reason in str(caught.value)


def test_a_newer_trace_is_refused_with_the_version_that_wrote_it(tmp_path: Path) -> None:
    """It might be misread."""
    header = dataclasses.replace(HEALTHY.header, schema=SCHEMA + 1, tunecheck_version="9.9")
    path = write(tmp_path / "trace.jsonl", header, START, END)
    with pytest.raises(TraceError) as caught:
        read(path)
    assert str(caught.value) == (
        f"{path}: trace schema {SCHEMA + 1}, this tunecheck reads {SCHEMA}; "
        "judge it with the tunecheck that wrote it (9.9)"
    )


def test_the_commit_that_wrote_a_trace_is_named(tmp_path: Path) -> None:
    """Two commits of one version may write different schemata."""
    environment = {"git": {"commit": "0123456789abcdef", "dirty": False}}
    header = dataclasses.replace(HEALTHY.header, schema=SCHEMA - 2, environment=environment)
    with pytest.raises(TraceError, match=r"wrote it \(.*, commit 0123456789ab\)"):
        read(write(tmp_path / "trace.jsonl", header, START, END))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", ": no run header; this is not a trace, or its first line is lost"),
        (b"just text, no newline", ": no run header"),
        (b"step,loss\n0,4.9\n", ":1: not a trace record: 'step,loss'"),
        (b'{"instruction": "Who?", "response": "I."}\n', ":1: not a trace record"),
        (b"\x89PNG\r\n\x1a\n\x00\n", ":1: 'utf-8' codec"),
        (encode(STEP).encode() + b"\n", ": a Step record before any attempt began"),
        (encode(HEALTHY.header).encode() + b"\n" + encode(END).encode() + b"\n", ": a AttemptEnd record before any"),
        (encode(START).encode() + b"\n" + encode(STEP).encode() + b"\n", ": no run header"),
    ],
    ids=["empty", "text", "table", "rows", "picture", "no attempt", "end without start", "no header"],
)
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    """With its path and what is missing."""
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}{reason}")


def test_a_line_that_a_killed_child_left_in_half_is_dropped(tmp_path: Path) -> None:
    """Its parent ends the line and says how the child ended; a cut inside a character is no different."""
    half = encode(STEP).encode()[:40] + "\u00e4".encode()[:1]
    crashed = dataclasses.replace(END, outcome=e.AttemptOutcome.CRASHED)
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n".join(r.encode() for r in map(encode, (HEALTHY.header, START, STEP))) + b"\n" + half)
    assert [type(record) for record in read(path).main.records] == [type(STEP)]

    with path.open("ab") as file:
        file.write(b"\n" + encode(crashed).encode() + b"\n")
    trace = read(path)
    assert len(trace.main.records) == 1
    assert trace.main.end == crashed


def test_an_unreadable_path_is_a_trace_error(tmp_path: Path) -> None:
    """A file that is not there, and a folder."""
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(TraceError) as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}: cannot be read: ")


def test_an_attempt_without_an_end_is_kept_unfinished(tmp_path: Path) -> None:
    """Both when another attempt follows and at the end of the file."""
    records = [HEALTHY.header, START, STEP, START, HEALTHY.steps[2], STEP]
    trace = read(write(tmp_path / "trace.jsonl", *records))
    assert trace.attempts == (Attempt(START, (STEP,), None), Attempt(START, (HEALTHY.steps[2], STEP), None))
    assert not any(run.finished for run in trace.attempts)


def test_the_last_training_counts_whatever_came_after_it() -> None:
    """A fallback replaces the attempt that failed; repeat and resume do not."""
    failed = Attempt(START, (STEP,), e.AttemptEnd(outcome=e.AttemptOutcome.OUT_OF_MEMORY, detail="8 GiB", seconds=2.0))
    trace = Trace(HEALTHY.header, (failed, *HEALTHY.attempts))
    assert trace.main is HEALTHY.attempts[0]
    assert (failed.finished, trace.main.finished) == (False, True)
    assert [trace.last(purpose).start.purpose for purpose in ("train", "repeat", "resume")] == [
        "train",
        "repeat",
        "resume",
    ]
    assert [len(trace.last(purpose).all(e.Step)) for purpose in ("train", "repeat", "resume")] == [6, 3, 3]


def test_records_are_found_by_kind() -> None:
    """All of them in order, or the last one."""
    assert [step.step for step in HEALTHY.steps] == list(range(6))
    assert HEALTHY.one(e.Census).when == "end"
    assert HEALTHY.run.id == "two-layers-qlora"
    assert attempt("train").all(e.Step) == []


def test_what_is_not_there_is_missing_evidence() -> None:
    """Never an empty list that a check could take for "no problem"."""
    empty = Trace(HEALTHY.header, (attempt("train"),))
    with pytest.raises(MissingEvidence, match="the trace holds no Census record"):
        empty.all(e.Census)
    with pytest.raises(MissingEvidence, match="the trace holds no Weights record"):
        empty.one(e.Weights)
    with pytest.raises(MissingEvidence, match="no attempt with the purpose 'resume' was made"):
        empty.last("resume")
    with pytest.raises(MissingEvidence, match="no attempt with the purpose 'train' was made"):
        _ = Trace(HEALTHY.header, ()).main
