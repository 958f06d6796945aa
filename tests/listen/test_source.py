"""What a script's source computes and never uses. No training: files are read."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from tunecheck.listen.unused_values import unused_values


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
    begin = eval("lambda train: [*train()]", own)
    return [(value.kind, value.name) for seen in begin(unused_values) for value in seen.unused]


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
    begin = eval("lambda train: [*train()]", {"__file__": str(path), "request": Proxy()})
    assert [seen.files > 0 for seen in begin(unused_values)] == [True]


def test_sources_that_cannot_be_read_are_left_out(tmp_path, monkeypatch):
    """Those of another Python, or of a file that is gone."""
    assert not read(tmp_path, monkeypatch, "print 'x'", "mask = 1\nuse(mask)")
