"""What a script's source tells by its text alone. No training: files are read."""

from __future__ import annotations

import ast
import importlib.util
import runpy
import sys

import pytest
from torch import nn

from tunecheck.checks import CHECKS
from tunecheck.core.finding import Status
from tunecheck.core.trace import read as read_trace
from tunecheck.listen.loop import LoopHooks
from tunecheck.listen.options import Options
from tunecheck.listen.source import read_source, slips

IDLE = "accumulate() of an Accelerator without gradient_accumulation_steps"


def read(tmp_path, monkeypatch, *sources, options=()):
    """Have the last of these sources be what trains; return what they do not use, by kind and name."""
    monkeypatch.setattr(sys, "argv", ["train.py", *options])
    names = {}
    for number, source in enumerate(sources):
        path = tmp_path / f"own_{number}.py"
        path.write_text(source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        own = {"__file__": str(path), **names}
        names[path.stem] = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, path.stem, names[path.stem])
    begin = eval("lambda train, model: [*train(model)]", own)
    return [(slip.kind, slip.name) for seen in begin(read_source, nn.Linear(1, 1)) for slip in seen.slips]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def rows(text):\n    prompt_len = len(text)\n    return text", [("variable", "prompt_len")]),
        ("def rows(text):\n    prompt_len = len(text)\n    return text[prompt_len:]", []),
        ("def rows(text):\n    prompt_len = len(text)\n    return lambda: prompt_len", []),
        ("def rows(text):\n    prompt_len = len(text)\n    prompt_len += 1\n    return text", []),
        ("def rows(text):\n    max_len = len(text)\n    return text", []),
        ("def rows(text):\n    answer = len(text)\n    return text", []),
        ("def rows(text):\n    mask = text\n    return locals()", []),
        ("def rows(text):\n    ids, mask = text\n    return ids", [("variable", "mask")]),
        ("def rows(text):\n    ids, _mask = text\n    return ids", []),
        ("def rows(text):\n    ids, loss = text\n    return ids", []),
        ("def rows(texts):\n    for ids, mask in texts:\n        print(ids)", [("variable", "mask")]),
        ("def rows(texts):\n    for mask in texts:\n        print(1)", []),
        ("def loss_of(logits, loss_mask):\n    return logits.mean()", [("parameter", "loss_mask")]),
        ("def loss_of(logits, loss_mask):\n    raise NotImplementedError", []),
        ("@hooked\ndef loss_of(logits, loss_mask):\n    return logits.mean()", []),
        ("class A(Trainer):\n    def loss(self, labels):\n        return 1", []),
        ("class A(nn.Module):\n    def forward(self, labels):\n        return 1", [("parameter", "labels")]),
        ("def rows(x):\n    x.masked_fill(x, -100)\n    return x", [("result", "x.masked_fill(...)")]),
        ("def rows(x):\n    x = x.masked_fill(x, -100)\n    return x", []),
        ("def rows(x):\n    random.shuffle(x)\n    x.fillna(0, inplace=True)\n    return x", []),
        ("torch.no_grad()\nscores = model(x)", [("result", "torch.no_grad(...)")]),
        ("a = Accelerator()\nwith a.accumulate(model): ...", [("idle", IDLE)]),
        ("a = Accelerator(gradient_accumulation_steps=n)\nwith a.accumulate(model): ...", []),
        ("a = Accelerator(**given)\nwith a.accumulate(model): ...", []),
        ("a = Accelerator()\nwith torch.no_grad(): ...", []),
        ("train_data.shuffle(seed=1)", [("result", "train_data.shuffle(...)")]),
        ("hooks.detach()\ndraw.shuffle(rows)\nself.detach()", []),
        ("optimizer.step", [("result", "optimizer.step")]),
        ("optimizer.step()\nfigure.axes", []),
        ("loss == loss / 4", [("result", "loss == loss / 4")]),
        ("RATE = 3e-4", [("variable", "rate".upper())]),  # what this file has as a string is read
        ("RATE = 3e-4\nadam(lr=RATE)", []),
        ("p.add_argument('--kl_scaling', type=float)", [("option", "--kl_scaling")]),
        ("p.add_argument('--kl_scaling', type=float)\nadam(p.kl_scaling)", []),
        ("p.add_argument('--kl_scaling', type=float)\nadam(**vars(p))", []),
        ("p.add_argument('--seed', type=int)", []),
        ("p.add_argument('--warmup', type=int)", []),
    ],
)
def test_values_that_a_source_does_not_use(source, found, tmp_path, monkeypatch):
    """Names of masks, labels, losses and rates alone; an option where the command gives it."""
    assert read(tmp_path, monkeypatch, source, options=["--kl_scaling=1", "--seed", "1"]) == found


def test_a_module_may_use_what_another_defines(tmp_path, monkeypatch):
    """As a script's settings are."""
    assert not read(tmp_path, monkeypatch, "DROPOUT = 0.1", "import own_0\nmodel(own_0.DROPOUT)")


def test_a_source_of_endless_terms_is_left_out(tmp_path, monkeypatch):
    """Nothing is said of it."""
    assert not read(tmp_path, monkeypatch, "x.fillna(" + " + ".join("a" * 900) + ")")


def test_names_may_be_used_where_nothing_was_read(tmp_path, monkeypatch):
    """Of a large script the rest is not read: a module's own names, and options, may be used there."""
    large, option = f"text = '{'x' * (1 << 18)}'", "p.add_argument('--kl_scaling')"
    own = f"import own_0\nMOST_RATE = 1\n{option}\nx.fillna(0)"
    assert read(tmp_path, monkeypatch, large, own, options=["--kl_scaling"]) == [("result", "x.fillna(...)")]


def test_what_a_parser_warns_of_is_not_heard(tmp_path, monkeypatch, recwarn):
    """The training has been compiled before."""
    assert read(tmp_path, monkeypatch, 'RATE = "\\d"') == [("variable", "rate".upper())]
    assert not recwarn.list


class Proxy:
    """What runs code of others when it is asked for anything."""

    def __getattribute__(self, name):
        raise RuntimeError(name)


def test_objects_of_a_module_are_not_asked_for_anything(tmp_path):
    """A proxy may be out of its context."""
    path = tmp_path / "train.py"
    path.write_text("RATE = 1", encoding="utf-8")
    begin = eval("lambda train, model: [*train(model)]", {"__file__": str(path), "request": Proxy()})
    assert [seen.files > 0 for seen in begin(read_source, nn.Linear(1, 1))] == [True]


def test_sources_that_cannot_be_read_are_left_out(tmp_path, monkeypatch):
    """Those of another Python, or of a file that is gone."""
    assert not read(tmp_path, monkeypatch, "print 'x'", "mask = 1\nuse(mask)")


def told(source):
    """What the rules find in this source, but for values that are never used."""
    kinds = ("exchanged", "reordered", "best", "mode", "term", "mean")
    return [f"{slip.kind}: {slip.name}" for slip in slips({"train.py": ast.parse(source)}) if slip.kind in kinds]


LOGPS = """
chosen_logps = logps(b["chosen_ids"], b["chosen_mask"])
rejected_logps = logps(b["rejected_ids"], b["{}_mask"])
"""
LOADERS = """
train_set, val_set = Rows("train.jsonl"), Rows("val.jsonl")
train_loader = DataLoader(train_set, shuffle=True)
val_loader = DataLoader({}_set)
"""
ENCODED = """
def encode(src, tgt, src_tok, tgt_tok):
    src_ids = src_tok(src)
    tgt_ids = {}_tok(tgt)
    return src_ids, tgt_ids, tgt_tok
"""
PAIRED = """
def loss_of(chosen, rejected):
    return chosen - rejected
loss = loss_of({})
"""
HANDED_ON = """
class Layer:
    def __init__(self, self_attn, src_attn):
        self.self_attn = self_attn
        self.src_attn = {}
"""


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (LOGPS.format("rejected"), []),
        (LOGPS.format("chosen") + "mask = b['rejected_mask']", ["rejected_logps from chosen_mask"]),
        (LOGPS.format("chosen"), []),  # perhaps there is one mask for both
        (LOADERS.format("val"), []),
        (LOADERS.format("train"), ["val_loader from train_set"]),
        (ENCODED.format("tgt"), []),
        (ENCODED.format("src"), ["tgt_ids from src_tok"]),
        (PAIRED.format("chosen, rejected"), []),
        (PAIRED.format("rejected, chosen"), ["rejected from chosen"]),
        (HANDED_ON.format("src_attn"), []),
        (HANDED_ON.format("self_attn"), ["src_attn from self_attn"]),
        ("chosen, rejected = batch['rejected'], batch['chosen']", ["rejected from chosen"]),
        ("val_data = train_data", ["val_data from train_data"]),
        ("evaluate(model, train_loader)\ndef evaluate(model, val_loader): ...", []),
        ("trainer = Trainer(train_dataset=train_set, eval_dataset=train_set)", ["eval_dataset from train_set"]),
        ("val_texts = val_labels = []\nval_set = Rows(train_texts, train_labels)",
         ["val_set from train_texts, train_labels"]),
        ("val_set = Rows(train_texts[:100], train_labels[:100])\nval_texts = val_labels = []", []),
        ("train = rows[:int(0.8 * n)]\nval = rows[int(0.8 * n):]", []),
        ("train = rows[:int(0.8 * n)]\nval = rows[int(0.2 * n):]",
         ["val from rows[int(0.2 * n):], of which train has a part"]),
        ("train = rows[:int(len(rows) * 0.9)]\nval = rows[int(len(rows) * 0.5):]",
         ["val from rows[int(len(rows) * 0.5):], of which train has a part"]),
        ("train = rows[:900]\nval = rows[800:]", ["val from rows[800:], of which train has a part"]),
        ("train = rows[:800]\nval = rows[900:]\ntest = rows[cut:]", []),
        ("x_train, x_test = x[train], x[test]\ny_train, y_test = y_all[train], y_all[test]", []),
        ("x_in_train, x_in_test = x_train[folds], x_train[others]\nx_test = 1", []),
        ("emb1 = model(x1)\nemb2 = model(x1)\nprint(x2)", ["emb2 from x1"]),
        ("conv1 = nn.Conv2d(a, b)\nconv2 = nn.Conv2d(b, b)\nconv3 = nn.Conv1d(b, b)", []),
        ("emb1 = model(x1)\nemb2 = model(x1)", []),  # two views of one row
        ("loss_1 = f(x1, x2)\nloss_2 = f(x2, x1)", []),
        ("train_a = tok(train_b, train_set.pad)\nval_a = tok(val_b, train_set.pad)\nval_set = 1", []),
        ("train_a = train_set.text\nval_a = train_set.text\nval_set = 1", ["val_a from train_set"]),
        ("q = self.q_proj(x)\nk = self.q_proj(x)\nv = self.k_proj(x)", ["k from q_proj"]),
        ("ref_model = load(policy_name)\npolicy_model = load(policy_name)\nref_name = 1", []),
        ("chosen = logps[:b['chosen'].shape[0]]\nrejected = logps[len(b['chosen']):]", []),
        ("train_rows = load(args.train_batch_size)\neval_rows = load(args.train_batch_size)\na.eval_batch_size", []),
        ("f1_score(labels, preds)", []),
        ("f1_score(preds, labels)", ["predictions from labels"]),
        ("metric.compute(predictions=labels, references=preds)", ["references from preds"]),
        ("pseudo_labels = preds", []),
        ("start = ce(start_logits, start_at)\nend = ce(end_logits, start_at)\nend_at = 1", ["end from start_at"]),
        ("actor_opt = Adam(actor)\ncritic_opt = Adam(actor)\ncritic = 1", ["critic_opt from actor"]),
        ("train_a = net.train()\nval_a = net.eval()", []),
        ("mse(pos - neg, pos_t - neg_t)", []),
        ("mse(pos - neg, neg_t - pos_t)", ["pos - neg beside neg_t - pos_t"]),
        ("x = p_chosen - p_rejected\ny = r_rejected - r_chosen\nz = x - y",
         ["p_chosen - p_rejected beside r_rejected - r_chosen"]),
        ("x = p_chosen - r_chosen\ny = p_rejected - r_rejected\nz = x - y", []),
        ("right, hinge = pos - neg > 0, relu(neg - pos + margin)", []),
    ],
)  # fmt: skip
def test_values_go_to_names_of_their_own_role(source, found):
    """A name that both roles share is no mistake."""
    assert told(source) == [f"exchanged: {name}" for name in found]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("texts, labels = load()\nrandom.shuffle(texts)\nrows = Dataset(texts, labels)", ["texts without labels"]),
        ("texts, labels = load()\nrandom.shuffle(texts)\nlabels = of(texts)\nrows = Dataset(texts, labels)", []),
        ("texts, labels = load()\nrows = list(zip(texts, labels))\nrandom.shuffle(rows)", []),
        ("texts, labels = load()\nshuffle(texts)\nshuffle(labels)\nrows = Dataset(texts, labels)", []),
        ("train, val = split()\nrandom.shuffle(train)\nrows = Datasets(train, val)", []),
        ("for a, b in c:\n    x.append(a)\n    y.append(b)\nx.sort(key=len)\nrows = zip(x, y)", ["x without y"]),
        ("def of(x, y):\n    x = sorted(x, key=len)\n    return TensorDataset(x, y)", ["x without y"]),
        ("x = df['a'].tolist()\ny = df['b'].tolist()\nx = random.sample(x, len(x))\nrows = {'x': x, 'y': y}",
         ["x without y"]),
        ("class Rows: ...\nx, y = load()\nrandom.shuffle(x)\nrows = Rows(x, y)", ["x without y"]),
        ("x, y = load()\nrandom.shuffle(x)\nplot(x, y)", []),
        ("df['text'] = df['text'].sample(frac=1).values", ["df['text'] alone"]),
        ("df['text'] = np.random.permutation(df['text'])", ["df['text'] alone"]),
        ("df = df.sample(frac=1).reset_index()", []),
        ("rows[place] = sorted(rows[place])", []),
    ],
)  # fmt: skip
def test_lists_stay_paired(source, found):
    """Lists that are made together, reordered one alone, and used together."""
    assert told(source) == [f"reordered: {name}" for name in found]


KEPT = """
best_loss = {start}
for epoch in range(3):
    if val_loss {sign} best_loss:
        best_loss = val_loss
        best_state = {state}
model.load_state_dict(best_state)
"""


@pytest.mark.parametrize(
    ("start", "sign", "state", "found"),
    [
        ("float('inf')", "<", "copy.deepcopy(model.state_dict())", []),
        ("1e9", "<", "{k: v.clone() for k, v in model.state_dict().items()}", []),
        ("float('inf')", "<", "model.state_dict()", ["best_state is no copy of model.state_dict()"]),
        ("float('inf')", "<", "model", ["best_state is no copy of model"]),
        ("float('inf')", ">", "path", ["best_loss keeps the largest val_loss"]),
        ("0.0", "<", "path", ["best_loss starts at 0, and no val_loss is smaller"]),
        ("-np.inf", "<", "path", ["best_loss starts at -inf, and no val_loss is smaller"]),
    ],
)
def test_the_best_weights_are_kept(start, sign, state, found):
    """In a copy, by the right comparison, from a start that is worse than all."""
    assert told(KEPT.format(start=start, sign=sign, state=state)) == [f"best: {name}" for name in found]


def test_other_bests():
    """An accuracy is better when it is larger; what is saved at once needs no copy; a worst row may be looked for."""
    assert told("if acc < best_acc:\n    best_acc = acc") == ["best: best_acc keeps the smallest acc"]
    assert told("if best_acc > acc:\n    best_acc = acc") == ["best: best_acc keeps the smallest acc"]
    assert not told("if loss > best_worst:\n    best_worst = loss")
    assert not told(
        "for e in n:\n    if a > best_a:\n        best = model.state_dict()\n        torch.save(best, path)"
    )


TRAINED = """
def evaluate():
    {eval}
    with torch.no_grad():
        for batch in val_loader:
            model(batch)

model.train()
for epoch in range(3):
    {train}
    for batch in loader:
        model(batch).backward()
    evaluate()
"""


@pytest.mark.parametrize(
    ("into_eval", "back", "found"),
    [
        ("model.eval()", "model.train()", []),
        ("model.eval()", "pass", ["model.eval() stands in the loop, and train() does not"]),
        ("pass", "model.train()", ["model is evaluated in train mode: eval() is never called"]),
        ("model.train(False)", "model.train()", []),
    ],
)
def test_modes_are_switched(into_eval, back, found):
    """Into eval mode for an evaluation, and back for each epoch, also where a function does it."""
    assert told(TRAINED.format(eval=into_eval, train=back)) == [f"mode: {name}" for name in found]


@pytest.mark.parametrize(("drops", "found"), [(0.0, 0), (0.1, 1)])
def test_modes_matter_where_something_is_dropped(drops, found, tmp_path):
    """Or where batches are normalised."""
    (path := tmp_path / "train.py").write_text(TRAINED.format(eval="pass", train="pass"), encoding="utf-8")
    begin = eval("lambda train, model: [*train(model)]", {"__file__": str(path)})
    (seen,) = begin(read_source, nn.Dropout(drops))
    assert [slip.kind for slip in seen.slips if slip.file == "train.py"] == ["mode"] * found


DISTILLED = """
def loss_of(student_logits, teacher_logits, temperature):
    return kl(F.log_softmax(student_logits / temperature, -1), F.softmax(teacher_logits{}, -1))
"""


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("loss = ce + 0.1 * reg_loss\nloss.backward()", []),
        ("loss = ce + 0.1 * reg_loss.item()\nloss.backward()", ["adds reg_loss.item(), which has no gradient"]),
        ("loss += kl_loss.detach()\naccelerator.backward(loss)", ["adds kl_loss.detach(), which has no gradient"]),
        ("loss = a_loss / a_loss.detach() + b_loss\nloss.backward()", []),
        ("loss = a_loss + b_loss.detach() * c_loss\nloss.backward()", []),
        ("total += loss.item()\nloss.backward()", []),
        (DISTILLED.format(" / temperature"), []),
        (DISTILLED.format(""), ["softens the student by a temperature, and the teacher without"]),
    ],
)
def test_terms_of_a_loss_are_whole(source, found):
    """A ratio of losses may be a number, and so may what is logged."""
    assert told(source) == [f"term: {name}" for name in found]


EPOCHS = """
{before}
for epoch in range(3):
    {within}
    for batch in loader:
        total += {added}
    print(total / {over})
"""
METERED = """
from torchmetrics import Accuracy
def evaluate(metric):
    return metric.compute()
accuracy = Accuracy()
for epoch in range(3):
    evaluate(accuracy)
    {}
"""
GOES_ON = "the sum goes on from pass to pass, the count does not"


def epochs(before="total = 0", within="total = 0", added="loss.item()", over="len(loader)"):
    return EPOCHS.format(before=before, within=within, added=added, over=over)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (epochs(), []),
        (epochs(within="pass"), [f"total over len(loader): {GOES_ON}"]),
        (epochs(within="seen.append(1)", over="len(seen)"), []),  # a mean of all steps so far
        (epochs(within="pass", over="steps"), []),
        (epochs(over="len(dataset)"), ["total over len(dataset): the sum is of batches, and the count of rows"]),
        (epochs(added="loss.item() * len(batch)", over="len(dataset)"), []),
        (epochs(over="len(loader.dataset)"),
         ["total over len(loader.dataset): the sum is of batches, and the count of rows"]),
        (epochs(over="len(loader.dataset)") + "F.nll_loss(x, y, reduction='sum')", []),
        (epochs(added="right", over="(len(loader) * batch_size)"),
         ["total over len(loader) * batch_size: the last batch may have fewer rows"]),
        ("print(eval_loss / len(eval_loader), train_loss / len(train_loader))", []),
        ("print(eval_loss / len(train_loader))",
         ["eval_loss over len(train_loader): the one is of the training, and the other is not"]),
        ("print(train_loss / 3, step / len(train_loader), total / (len(rows) + 1))", []),
        (METERED.format("accuracy.reset()"), []),
        (METERED.format("pass"), ["metric.compute(): nothing resets what it counts"]),
    ],
)  # fmt: skip
def test_means_divide_a_sum_by_its_own_count(source, found):
    """A mean over all steps so far is no mistake."""
    assert told(source) == [f"mean: {name}" for name in found]


SCRIPT = """
import copy, random
import torch
from torch import nn
from torch.nn.functional import cross_entropy

class Rows(torch.utils.data.Dataset):
    def __init__(self, xs, ys):
        self.pairs = list(zip(xs, ys))
    def __len__(self):
        return len(self.pairs)
    def __getitem__(self, at):
        return self.pairs[at]

def load():
    xs = [torch.randn(8) for _ in range(48)]
    return xs, [int(x.sum() > 0) for x in xs]

def evaluate(model, rows):
    model.eval()
    with torch.no_grad():
        return sum(float(cross_entropy(model(x), y)) for x, y in rows)

torch.manual_seed(0)
xs, ys = load()
{shuffled}
rows = torch.utils.data.DataLoader(Rows(xs, ys), 8)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
best_loss = float("inf")
total_loss = 0.0
{before}
for _ in range(2):
    {within}
    {zero}
    for x, y in rows:
        reg_loss = sum(p.pow(2).sum() for p in model.parameters())
        loss = cross_entropy(model(x), y) + 0.01 * {term}
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total_loss += float(loss.detach())
    print(total_loss / len(rows))
    val_loss = evaluate(model, rows)
    if val_loss {sign} best_loss:
        best_loss = val_loss
"""
BROKEN = {
    "lists_stay_paired": {"shuffled": "random.shuffle(xs)"},
    "modes_switched": {"before": "model.train()", "within": "pass"},
    "loss_terms_whole": {"term": "reg_loss.item()"},
    "best_weights_kept": {"sign": ">"},
    "means_whole": {"zero": "pass"},
}


@pytest.mark.parametrize("check", BROKEN)
@pytest.mark.parametrize("broken", [True, False], ids=["broken", "healthy"])
def test_a_script_that_trains_is_asked_about_its_source(check, broken, tmp_path):
    """Each by its own check, and none of the healthy script. In fp32."""
    parts = {"shuffled": "pass", "before": "pass", "within": "model.train()", "zero": "total_loss = 0.0"}
    parts |= {"term": "reg_loss", "sign": "<"}
    source = SCRIPT
    for name, part in (parts | (BROKEN[check] if broken else {})).items():
        source = source.replace(f"{{{name}}}", part)
    (path := tmp_path / "train.py").write_text(source, encoding="utf-8")
    hooks = LoopHooks(Options(folder=str(tmp_path), name="script", steps=6))
    hooks.attach()
    runpy.run_path(str(path))
    hooks.detach()
    (trace,) = map(read_trace, tmp_path.glob("watch-*.jsonl"))
    findings = {name: CHECKS[name]()(trace) for name in BROKEN}
    asked = [name for name, finding in findings.items() if finding.status is Status.SUSPECTED]
    assert asked == [check] * broken, findings[check].detail
