"""What is a secret by its name, by its shape or by its value is masked; what only sounds like one stays."""

from __future__ import annotations

import dataclasses
import html
import json
import os

import pytest
import traces

from tunecheck.core import redaction
from tunecheck.core.evidence import ProbeFailed
from tunecheck.core.redaction import redacted, shown
from tunecheck.core.trace import encode
from tunecheck.results.stored import without_secrets

RANDOM = "Zx9Qw8Er7Ty6Ui5Op4As3Df2"
TOKEN = "hf_" + "aB3dE6gH9" * 4
HEX = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("command", "secrets"),
    [
        (["python", "t.py", f"--hub_token={TOKEN}"], [TOKEN]),
        (["python", "t.py", "--password", "x'y z"], ["x'y", "y z"]),
        (["python", "t.py", "--hub-token", "plainword"], ["plainword"]),
        (["env", "MY_SERVICE_TOKEN=abc", "DB_PASS=p,q9", "python", "t.py"], ["abc", "p,", "q9"]),
        (["env", "OPENAI_KEY=w1", "python", "t.py", "--wandb-key", "w2", "--password=12 34"], ["w1", "w2", "12", "34"]),
        (["python", "t.py", "wandb.api_key=0123abcd", "+auth.clientSecret=zz"], ["0123abcd", "zz"]),
        (["git", "clone", "https://user:p@ss@host/x", "s3://AKIAIOSFODNN7EXAMPLE@b"], ["user:p", "ss@", "AKIA"]),
        (["sh", "-c", "HF_TOKEN=abc python t.py --password 'p q' --seed 3"], ["abc", "p q"]),
        (["t", '--config={"hub_token": "abc", "n": 1}', "-H", "Authorization: Bearer abcdef.x"], ["abc", "abcdef.x"]),
        (["curl", "https://h/x?access_token=abc&sig=q1w2"], ["abc", "q1w2"]),
        (["python", "t.py", "--ngc-key", RANDOM, "--key", RANDOM], [RANDOM]),
        (["curl", f"https://hooks.slack.com/services/T0/B0/{RANDOM}"], [RANDOM]),
        (["curl", f"https://discord.com/api/webhooks/123/{RANDOM}"], [RANDOM]),
        (["curl", "-u", "bob:pw1", "--proxy-user", "bob:pw2", "--user=bob:pw3"], ["pw1", "pw2", "pw3"]),
        (["sshpass", "-p", "hunter2x", "ssh", "h", "python", "t.py"], ["hunter2x"]),
        (["docker", "login", "-u", "bob", "-p", "hunter2x"], ["hunter2x"]),
        (["/usr/bin/mysql", "-uroot", "-phunter2x"], ["hunter2x"]),
        (["t", "-p", "S3cret!pw"], ["S3cret"]),
        (["sh", "-c", "curl -u bob:pw1x9 h; sshpass -p 'hunter 2x' ssh h; python t.py"], ["pw1x9", "hunter", "2x"]),
        (["t", "--pat", "aab", "--hf-pat=bbc", "GITHUB_PAT=ccd", "--otp", "123456"], ["aab", "bbc", "ccd", "123456"]),
        (["t", "--api_keys", "kk1", "kk2", "--access-tokens=tt1,tt2", "HF_TOKENS=tt3"], ["kk1", "kk2", "tt1", "tt3"]),
        (["docker", "run", "--env=HF_TOKEN=word word2", "--env", "HF_TOKEN", RANDOM, "i"], ["word", RANDOM]),
        (["curl", "-u", "bob:p@ss:w0rd", "-H", "Authorization: Bearer p@ss1"], ["w0rd", "p@ss1"]),
        (["python", "-c", f"login('{HEX}'); wandb.login(key='hunter2x')"], [HEX, "hunter2x"]),
        (["t", "--passwords", "pw1", "pw2", "--fast", "--passkey", "kk1"], ["pw1", "pw2", "kk1"]),
    ],
)
def test_no_secret_of_a_command_line_is_shown(command, secrets):
    """The program and the other words stay."""
    line = shown(command)

    assert not [secret for secret in secrets if secret in line], line
    assert line.startswith(command[0])
    assert redaction.MASK in line


@pytest.mark.parametrize(
    "text",
    [
        "python train.py --pad_token '<|end|>' --eos_token_id 2 --max_tokens 512 --text_key text",
        "model.layers.0.self_attn.k_proj.weight: tokens=12, pad_token: <pad>, token 5, per_token: 0.25",
        "the key: value; sort_key=name; unexpected token: end of file; passes: 3; PWD=/home/me",
        "tunecheck.listen.hf_trainer sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "https://example.com/a@b user@host --use_auth_token --fast /etc/passwd:1: /data/token:12: not JSON",
        "--max_tokens 512 --stop_tokens stop --keys a b --target_keys=q,k --compat=1 --pat 8 -u train.py -u 1000:1000",
        "sk-gpu-cluster-node-01-rack-17 npm-mirror-europe-west-2 pypi-server-production-01 xai-lab-node-0001-gpu-04",
        "('PASS', 'FAIL') ('token', 'label') ['token', 'tags'] --bypass=1 git commit: " + HEX,
        "SHAPE_KEYS = {, monkey=3, missing key model.layers.10.selfAttention.o_proj.weight, token 20261128T081500Z",
    ],
)
def test_what_only_sounds_like_a_secret_stays(text):
    """The tokens of a text, above all."""
    assert redacted(text) == text


@pytest.mark.parametrize(
    "text",
    [
        f"401 for url https://bob:hunter2x@hub/api ({TOKEN})",
        "Namespace(steps=3, password='hunter2x', n=1)",
        "{'api_key': 'hunter2x'}",
        '{"token": "hunter2x"}',
        "login failed: password: hunter2x",
        "HF_TOKEN: hunter2x",
        "Command '['curl', '--token', 'hunter2x']' returned 1",
        "Command '['curl', '-u', 'bob:hunter2x']' returned 1",
        f"invalid token {RANDOM}",
        f"[('hub_token', '{RANDOM}')] of wandb.login(key='{RANDOM}')",
        *(
            f"rejected: {kind}{RANDOM}"
            for kind in ("gsk_", "xai-", "pplx-", "wandb_v1_", "sk_live_", "GOCSPX-", "xapp-1-")
        ),
        "-----BEGIN RSA PRIVATE KEY-----\nhunter2x\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nhunter2x\n-----END PGP PRIVATE KEY BLOCK-----",
        "key=-----BEGIN%20RSA%20PRIVATE%20KEY-----%0Ahunter2x%0A-----END%20RSA%20PRIVATE%20KEY-----&y=1",
        f"next=https%3A%2F%2Fbob%3Ahunter2x%40h%2Fx%3Ft%3D{TOKEN}%26api_key%3Dhunter2x",
        f"'step 1\\n{TOKEN}\\napi_key=hunter2x\\nstep 2'",
        f"\x1b[31m{TOKEN}\x1b[0m \x1b[1mapi_key\x1b[0m=hunter2x",
        "{b'password': b'hunter2x'} password=b'hunter2x'",
        "[('api_key', 'hunter2x')] environ['WANDB_API_KEY'] = 'hunter2x' setdefault(\"HF_TOKEN\", 'hunter2x')",
        "password: |\n  hunter2x\nsteps: 3",
        "password=(\n    'hunter2x'\n) password: str = 'hunter2x' password => 'hunter2x'",
        "wrong password 'hunter2x' for bob; machine api login bob password hunter2x",
    ],
)
def test_no_secret_of_an_errors_text_is_shown(text):
    """Whatever wrote the exception: a Namespace, a dict, a URL."""
    line = redacted(text)

    assert "hunter2x" not in line
    assert RANDOM not in line
    assert TOKEN not in line


NAMES = ("password", "hub_token", "DB_PASSWORD", "WANDB_API_KEY", "client_secret", "smtp-pass", "verification_code")
VALUES = ("hunter2x", "swordfish", "correct horse battery", "p@ss&w0rd!x", RANDOM)
PLACES = {
    "YAML": lambda name, value: redacted(f"run:\n  {name}: {value}  # mine\n  steps: 3"),
    "an item of Kubernetes": lambda name, value: redacted(f"- name: {name}\n  value: {value}\n"),
    "a dump of the environment": lambda name, value: redacted(f"HOME=/root\n{name}={value}\nSHLVL=1"),
    "INI": lambda name, value: redacted(f"[default]\n{name} = {value}\n"),
    "JSON": lambda name, value: redacted(json.dumps({name: value, "n": 1})),
    "JSON in JSON": lambda name, value: redacted(json.dumps(json.dumps({"env_vars": {name: value}}))),
    "JSON in XML": lambda name, value: redacted(html.escape(json.dumps({name: value}))),
    "JSON in XML by numbers": lambda name, value: redacted(json.dumps({name: value}).replace('"', "&#34;")),
    "a pair of JSON": lambda name, value: redacted(json.dumps({"name": name, "value": value})),
    "an element of XML": lambda name, value: redacted(f"<{name}>{html.escape(value)}</{name}>"),
    "an attribute of XML": lambda name, value: redacted(f'<job {name}="{html.escape(value)}"/>'),
    "a line of Python": lambda name, value: redacted(f"    os.environ.setdefault({name!r}, {value!r})"),
    "a login": lambda name, value: redacted(f"huggingface_hub.login({value!r}); smtp.login('bob', {value!r})"),
    "a pair of a login": lambda name, value: redacted(f"get(url, auth=('bob', {value!r}))"),
    "an exception": lambda name, value: redacted(f"ValueError: wrong {name} {value!r} in {{{name!r}: {value!r}}}"),
    "an option": lambda name, value: shown(["t.py", f"--{name}", value, "--pin", value, f"--mfa={value}"]),
    "an option for the environment": lambda name, value: shown(
        ["sky", "launch", "--env", name.upper(), value, "x.yaml"]
    ),
    "an option of docker": lambda name, value: shown(["docker", "run", "-e", f"{name}={value}", "image"]),
    "-p beside a user": lambda name, value: shown(["dump", "-u", "bob", "-p", value, "table"]),
    "-u with a user": lambda name, value: shown(["curl", "-u", f"bob:{value}", "https://h/x"]),
}


@pytest.mark.parametrize("place", PLACES)
def test_no_planted_secret_is_shown(place):
    """Whatever its name and its value, be it words in a row."""
    texts = [(value, PLACES[place](name, value)) for name in NAMES for value in VALUES]

    assert [
        text for value, text in texts if any(f"{word}" in text for word in (*value.split(), html.escape(value)))
    ] == []


@pytest.mark.parametrize(
    "text",
    [
        "--max-tokens 512 --max_new_tokens=64 --pin-memory --pin_memory True --pin 1 --env WORLD_SIZE 4",
        "pad_token=<eos> eos_token='</s>' token_mean loss: token_mean pin_memory=True pad_token: &lt;pad&gt;",
        "password_hash = sha256\nloss: 2.31, token accuracy 0.8\npassed: 12\nkeyboard: us\ntext_key = prompt text",
        "exit code: 3 login node: n01 login(node) trainer.login() oauth login (RFC 8628) def login(user): author('x')",
        "token = tokens[0]\npassword = getpass()\napi_key = os.environ.get('X')\nhub_token: str | None = None",
        "primary_key: row id\nvocab_key: text\nauth: none\n<token>text</token>",
        "unexpected keyword argument 'password' KeyError: 'HF_TOKEN' choose from 'api_key', 'x'",
    ],
)
def test_no_ordinary_text_is_masked(text):
    """Tokens of a text, code that reads a secret, names without a value."""
    assert redacted(text) == text
    assert redacted(f"step: 1\n{text}\nstep: 2") == f"step: 1\n{text}\nstep: 2"


def test_a_value_that_the_process_was_given_is_masked_wherever_it_stands(monkeypatch):
    """It has neither a name nor a shape there."""
    monkeypatch.setenv("MY_STORE_SECRET", "correct-horse")
    monkeypatch.setenv("MY_TOKEN", "finished")  # a single word, which stands elsewhere by chance
    monkeypatch.setenv("MY_CREDENTIALS", os.getcwd())
    monkeypatch.setattr("sys.argv", ["train.py", "--db-password", "battery staple"])

    assert redacted("cannot log in with correct-horse and battery staple") == "cannot log in with REDACTED and REDACTED"
    assert redacted("q=battery%20staple") == "q=REDACTED"
    assert redacted(f"finished in {os.getcwd()}") == f"finished in {os.getcwd()}"


@pytest.mark.parametrize(
    "command",
    [
        ["ssh", "-p", "22", "h", "mkdir", "-p", "out/run1", "&&", "docker", "run", "-p", "8080:80", "-u", "1000:1000"],
        ["python", "-u", "train.py", "-p", "tiny-llama-1b", "--num_tokens", "512", "--special_tokens", "<a>", "<b>"],
        ["sshpass", "-f", "file", "ssh", "-p", "2222", "-path=x", "h"],
    ],
)
def test_no_other_word_of_a_command_line_is_masked(command):
    """A -p is a port, a folder or a model, if nothing logs in; a -u may be Python's."""
    assert redaction.hidden_words(command) == command


def test_traces_and_reports_are_redacted_at_any_depth():
    """One place for each kind of writer."""
    failed = ProbeFailed(probe="p", moment="m", error=f"ValueError: {TOKEN}", kinds=("Step",))
    trace = traces.healthy()
    header = dataclasses.replace(trace.header, environment={"deep": [{"url": f"https://u:{TOKEN}@h"}]})

    assert TOKEN not in encode(failed)
    assert TOKEN not in encode(header)
    assert TOKEN not in str(without_secrets(header))
    assert without_secrets(trace.header) == trace.header
