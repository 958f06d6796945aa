"""Tiny models for the tests of tunecheck.assets: folders without torch, a fake builder, a real GGUF file in a wheel."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import zipfile
from pathlib import Path

import numpy
from safetensors.numpy import save_file

from tunecheck.models.description import Model

ARCHITECTURE = {
    "model_type": "llama",
    "vocab_size": 264,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
}
PARAMETERS = 264 * 16 + 2 * (2 * 16 * 16 + 2 * 8 * 16 + 3 * 16 * 24 + 2 * 16) + 16
RANDOM = {"kind": "random"}
WEIGHTS = "model.safetensors"


def tiny(*sources, name="tiny", parameters=PARAMETERS, **changed):
    """A model that asks these sources, the random one by default."""
    architecture = {**ARCHITECTURE, **changed}
    given = {"name": name, "parameters": parameters, "architecture": architecture, "sources": list(sources) or [RANDOM]}
    return Model.model_validate(given)


def write_folder(folder, architecture=ARCHITECTURE, parameters=PARAMETERS, value=0.5, **extra):
    """A folder with config, weights (two tensors with this many elements) and tokenizer files, made without torch."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**architecture, **extra}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    tensors = {"a": numpy.full(parameters - 16, value, "float16"), "b": numpy.full((4, 4), value, "float16")}
    save_file(tensors, folder / WEIGHTS)
    return folder


class Builder:
    """Stands for the child process: writes a folder of the right shape and counts how often."""

    def __init__(self):
        self.calls = []

    def __call__(self, model, request):
        """As tunecheck.assets.build.in_child."""
        self.calls.append(request)
        write_folder(Path(request["out"]), request.get("architecture", ARCHITECTURE))


def digest(path):
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def cut(path):
    """Lose the last byte."""
    os.truncate(path, path.stat().st_size - 1)


def empty(path):
    """Lose everything."""
    os.truncate(path, 0)


def flip(path):
    """Change one byte and put the time of the last change back."""
    status, data = path.stat(), bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def halve(path):
    """Lose the second half."""
    os.truncate(path, path.stat().st_size // 2)


def local(path):
    """A source."""
    return {"kind": "local", "path": str(path)}


def shelf_of(home, name="tiny"):
    """Everything on a model's shelf but the lock."""
    return sorted(path.name for path in (home / "models" / name).iterdir() if path.name != ".lock")


def as_python(monkeypatch, tmp_path, script):
    """Make the parent start this shell script instead of Python."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


def write_gguf(path, state):
    """A llama GGUF file (F32, q and k permuted as llama.cpp has them) of this state dict, with a byte tokenizer."""
    import gguf
    from tokenizers.pre_tokenizers import ByteLevel

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(16)
    writer.add_feed_forward_length(24)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(264)
    letters = sorted(ByteLevel.alphabet())
    tokens = [*letters, "<unk>", "<s>", "</s>", "<pad>", "th", "he", "in", "er"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<") and len(token) > 1 else 1 for token in tokens])
    writer.add_token_merges(["t h", "h e", "i n", "e r"])
    for number, add in enumerate((writer.add_unk_token_id, writer.add_bos_token_id, writer.add_eos_token_id)):
        add(256 + number)
    writer.add_pad_token_id(259)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    for name, tensor in state.items():
        values = tensor.float().numpy()
        for part, heads in (("q_proj", 4), ("k_proj", 2)):
            if part in name:
                values = values.reshape(heads, 2, -1, 16).swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(names.get_name(name.removesuffix(".weight")) + ".weight", numpy.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_wheel(folder, file):
    """A wheel tiny_gguf-1.0 that carries this file as tiny_gguf/tiny.gguf."""
    wheel = folder / "tiny_gguf-1.0-py3-none-any.whl"
    info = "tiny_gguf-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, "tiny_gguf/tiny.gguf")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-gguf\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel
