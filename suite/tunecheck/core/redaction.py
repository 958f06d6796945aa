"""Keep passwords and tokens out of everything that is written: by their name, their shape, or their known value.

Every writer goes through it: traces and JSON by `trace.spelled`, reports by `stored.without_secrets`, errors by
`unexpected`, command lines by `shown`. Standard library only.
"""

import contextlib
import functools
import json
import os
import re
import shlex
import sys
import urllib.parse
from collections.abc import Callable, Sequence

from tunecheck.core.text import ESCAPE_SEQUENCE

MASK = "REDACTED"
"""A word that a shell, Markdown, JSON and XML show as it is."""
_NOTHING = {"", "none", "true", "false", "null", "str", MASK.lower()}

_WORDS = (
    "(?:passw(?:or)?[dt]|passphrase|passcode|secret|credential|cred|key|auth|jwt|bearer|cookie|token|pat|otp|pin|mfa)s?"
    "|pass|pwd|(?:access|auth|mfa|otp|pin|security|verification)[_-]?code"
)
_QUOTE = r"\\*[\"'] | &(?:quot|apos|\#0*3[49]|\#x2[27]);"
_SECRET_NAME = re.compile(rf"(?i)(?:{_WORDS})[_-]?[0-9]*$")
_COMMON = re.compile(r".{,5}|[0-9.]*|[a-z]{,11}", re.DOTALL)
_KEY_KINDS = {"api", "access", "secret", "private", "auth", "encryption", "master", "service", "account", "license"}
_KEY_KINDS |= {"wandb", "hf", "openai", "anthropic", "aws", "azure", "google", "comet", "neptune", "bearer"}
_KEY_KINDS |= {"db", "smtp", "admin", "root", "pass", "signing", "storage", "shared", "hub", "github", "gitlab", "gh"}
_RANDOM = re.compile(r"(?=[^0-9]*[0-9])(?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])[A-Za-z0-9+/=-]{20,}|[0-9a-f]{40}")
"""A value that nobody chose, which is a secret wherever a word for one stands before it."""
_TEXT_TOKENS = {"pad", "eos", "bos", "unk", "sep", "cls", "mask", "stop", "end", "start", "image", "audio", "video"}
_TEXT_TOKENS |= {"special", "target", "next", "first", "last", "new", "per", "prompt", "response"}
"""Tokens of a text, not of an account: pad_token."""

_SHAPES = re.compile(
    r"(?:\b|(?<=%[0-9A-Fa-f]{2})|(?<=\\[nrt]))(?:"  # behind an encoded character, too
    r"hf_(?:[A-Za-z0-9]{16,}|(?=[A-Za-z]*[0-9]|[a-z]*[A-Z])[A-Za-z0-9]{8,})"
    r"|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
    r"|(?:sk|nvapi|npm|r8|pypi|api_org|gsk|xai|pplx|(?:wandb|tgp|dop)_v1|[prs]k_(?:live|test)|whsec|shpat|dckr_pat"
    r"|glptt|GOCSPX)[_-](?=[\w-]*?(?=[A-Za-z]*[0-9])[A-Za-z0-9]{12})[\w-]{16,}"  # sk-gpu-node-01-rack-17 is a node
    r"|xapp-[\w-]{10,}|SG\.[\w-]{16,}\.[\w-]{16,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{12,}|AIza[\w-]{30,}|ya29\.[\w-]{16,}|xox[a-z]-[\w-]{10,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)"
    r"|(?<=hooks\.slack\.com/services/)[\w/]+"
    r"|-----BEGIN[A-Z0-9 +%]*PRIVATE[ +%20]+KEY[A-Z0-9 +%]*-----.*?(?:-----END[A-Z0-9 +%]*-----|$)",
    re.DOTALL,
)
_HINTS = (
    *("pass", "pwd", "secret", "cred", "key", "auth", "jwt", "bearer", "cookie", "token", "sig", "://", "hf_"),
    *("sk-", "sk_", "-u"),
    *("gho_", "ghp_", "ghr_", "ghs_", "ghu_", "-pat", "_pat", "glpat-", "nvapi", "npm_", "npm-", "r8_", "r8-", "pypi"),
    *("api_org", "akia", "asia", "aiza", "ya29", "xox", "eyj", "gsk", "xai", "pplx", "_v1", "k_live", "k_test"),
    *("whsec", "shpat", "glptt", "gocspx", "xapp", "sg.", "otp", "pin", "mfa", "login", "code", "%2f%2f"),
)
"""One of these stands, in small letters, in every text that the expressions below may match."""
_USER_OF_URL = re.compile(r"(?<=://)[^\s/?#\"'<>]+@|(?i:(?<=%3A%2F%2F)(?:(?!%2F)[^\s/\"'<>&])+?%40)")
_HEADER = re.compile(  # and the signature of a URL, and what webhooks are called by
    r"(?i)(\bauthorization\\?[\"']?\s*[:=]\s*\\?[\"']?(?:[a-z]+\s+)?|\bbearer\s+|[?&][\w-]*sig(?:nature)?="
    r"|://discord(?:app)?\.com/api/webhooks/[0-9]+/|\blogin\s+\S+\s+password\s+)"
    r"([^\s\"',;&<>\\)\]}]{4,})"
)
_CALL = re.compile(r"(?i)\b(?:\w*login|\w*BasicAuth|auth(?:enticate)?)(?:\s*=\s*)?\([^()\n]+")
_ARGUMENT = re.compile(  # in quotes, or with digits
    rf"(?x)(?:(?<![=\w]) | (?<=\bkey=)) (?P<quote> {_QUOTE}) .+? (?P=quote) | (?<=[(,\ ]) [A-Za-z]*[0-9]\w* (?=[),]|$)"
)
_ELEMENT = re.compile(r"(?:<|&lt;)(?P<name>[\w.-]+)(?P<sep>>|&gt;)(?P<value>[^<]{1,200}?)(?=(?:<|&lt;)/(?P=name))")
_LINE = re.compile(  # a value that goes on to the end of its line
    r"""(?mx) ^ [ \t]* (?:-[ ])? (?:(?:export|set|name:)[ ])? (?P<name> [\w.-]+)
    (?P<sep> (?:\s+value)?:[ \t]+ | [ \t]*=[ \t]*)
    (?P<value> (?!["'|>&[{(]) [^\s#]\S* (?:[ \t]+ [^\s#]\S*)*) (?<![,{(\[]) [ \t]* (?:\#.*)? $"""
)
_CODE = re.compile(r"[A-Za-z_][\w.]*(?:[(\[][\w.]*)+$|.*\w[(\[]|.*\s[=|]\s|.*[\s(=][\"']")
_COMMAND = re.compile(r"\S+\s(?:.*\s)?(?:-|\S*[/=]|\S+\.\w+(?:\s|$))")  # behind NAME=value
_LOGIN = re.compile(r"(?:-u|--(?:proxy-)?user)(?:[\"']?[=,\s]\s*[\"']?)[^\s:/\"']+:[\"']?(?![0-9]{1,5}\b)([^\s\"']+)")
"""As curl and others are given a name with a password; -u 1000:1000 is a user with a group."""
_BY_P = re.compile(r"(?:.*/)?(?:login|sshpass|mysql\w*|mariadb|mongo\w*)")
"""Commands whose -p is a password; elsewhere it may be a port, a path, a prompt."""
_PASSWORD = re.compile(r"(?=.*[A-Za-z])(?=.*[0-9])(?=.*[!@#$%^&*?~])[^\s/]{8,}")
_NAMED = re.compile(
    rf"""(?ix) (?:(?<![\w.+\\%-]) | (?<=\\[nrt]) | (?<=%[0-9A-F]{{2}}) | (?<=[\\%])(?![nrt]|[0-9A-F]{{2}}))
    (?P<name>-{{0,2}} [\w.+-]{{0,60}}? (?:{_WORDS}) [_-]?[0-9]*)
    (?P<close> (?:{_QUOTE})?)
    (?P<sep> \]?\s*(?:=> | ,?\s*(?:{_QUOTE})?value(?:{_QUOTE})?\s*[:=] | :\s*\w+\s*= | :?=\s*\(?
     | :(?:\s*[|>][+-]?\s*\n)? | %3[AD])\s* | ,?\s+ | , )
    (?: [bruf]{{0,2}}(?P<quote> {_QUOTE}) (?P<quoted> .*?) (?P=quote) | (?P<bare> (?!--)[^\s"',;&)}}\]<>]+) )"""
)


def redacted(text: str) -> str:
    """Return the text with what may be a secret replaced by MASK."""
    return redactor()(text)


def redactor() -> Callable[[str], str]:
    """Return `redacted` for many texts: it looks at the environment once."""
    return functools.partial(_hidden, known=_known_values())


def shown(command: Sequence[str]) -> str:
    """Return a command as one line of a shell, without its secrets."""
    return shlex.join(hidden_words(command))


def hidden_words(command: Sequence[str]) -> list[str]:
    """Return the words of a command without its secrets."""
    known = _known_values(command)
    pairs = _with_secrets(command)
    return [word.removesuffix(secret) + MASK if secret else _hidden(word, known) for word, secret in pairs]


@functools.lru_cache(maxsize=64)  # a command may have a hundred thousand words
def _secrets_of(command: tuple[str, ...]) -> frozenset[str]:
    found = {secret for _, secret in _with_secrets(command)}
    for word in command:
        if " -" in word[:4096]:  # sh -c "sshpass -p ..."
            with contextlib.suppress(ValueError):
                inner = shlex.shlex(word[:4096], posix=True, punctuation_chars=";&|()")
                inner.whitespace_split, inner.commenters = True, ""
                found |= _secrets_of(tuple(inner))
    return frozenset(found)


def _with_secrets(command: Sequence[str]) -> list[tuple[str, str]]:
    """Return each word with the secret that its own name, or the option before it, gives away; or with ""."""
    pairs, option, logs_in = [], "", any(map(_BY_P.fullmatch, command))
    sets = () if {"docker", "podman"}.intersection(command) else ("-e", "--env", "set", "setenv", "setx")
    asks = logs_in or re.search(r"(?<!sudo) (?:-u|-U|--user(?:name)?) [A-Za-z][\w@-]* ", " ".join([*command, ""]))
    for first, before, word in zip(["", "", *command], ["", *command], command, strict=False):
        secret, rest = "", word
        while not secret and "=" in rest:  # --env=HF_TOKEN=...
            name, _, rest = rest.partition("=")
            secret = rest if _is_secret(name, rest) else ""
        if logs_in and re.match(r"-p(?![0-9]{,5}$|[\w-]*=|assw)", word):
            secret = word[2:]
        elif option and not word.startswith("--"):
            secret = _after(option, word, logs_in=bool(asks)) or secret
        elif (_RANDOM.fullmatch(word) or first in sets) and word[:1] != "-" and _is_secret(before, word):
            secret = word
        pairs.append((word, secret))
        if word.startswith("-") or not option.endswith("s"):  # --api_keys A B
            option = word if word.startswith("-") and "=" not in word else ""
    return pairs


def _after(option: str, word: str, *, logs_in: bool) -> str:
    """Return what of this word is a secret, as it stands after this option."""
    if option.lower() == "-p":  # not out/run1
        secret = not re.fullmatch(r"[0-9:]{,11}|-.*|.*/.*", word) if logs_in else _PASSWORD.fullmatch(word)
        return word if secret or _RANDOM.fullmatch(word) else ""
    login = option in ("-u", "--user", "--proxy-user") and re.fullmatch(r"(?s)[^\s:/]+:(?![0-9]{1,5}\b)(.+)", word)
    return login[1] if login else word if _is_secret(option, word) else ""


@functools.lru_cache(maxsize=1024)  # each record that is written asks it of the whole environment
def _is_secret(name: str, value: str = "x") -> bool:
    """Return whether a value of this name is a secret: --hub_token, wandb.api_key, DB_PASS; not pad_token, PWD."""
    option, name = name.startswith("-") or name.isupper(), name.lstrip("-+")
    if not _SECRET_NAME.search(name) or value.lower() in _NOTHING or re.search(r"\s|/", name):
        return False
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().rstrip("0123456789_-.")
    *before, last = re.split(r"[-_.]+", words)
    several, of_account = last.endswith("s") and not last.endswith("pass"), bool(_KEY_KINDS.intersection(before[-1:]))
    last = last.removesuffix("s") if several else last
    if _RANDOM.fullmatch(value):
        return True
    if last.endswith(short := ("pat", "otp", "totp", "pin", "mfa")):  # not --compat; --pat 8 is short for --patience
        of_account |= last == "mfa" or value[3:].isdecimal()
        return last in short and (option or of_account) and not re.fullmatch("[0-9]{,3}", value)
    if last.endswith("key"):
        kind = last.removesuffix("key") or "".join(before[-1:])
        return kind in _KEY_KINDS or (name.isupper() and bool(before) and not several)
    if last in ("pass", "pwd", "bypass", "compass"):
        return (option or of_account or before[-1:] == ["ssh"]) and words not in ("pwd", "oldpwd", "bypass", "compass")
    if last.endswith("token"):  # <|im_end|>, [PAD] and 128001 are tokens of a text
        of_text = re.fullmatch(r"[0-9]{,5}|[<\[].*[>\]]" if of_account else r"[0-9]+|[<\[].*[>\]]", value) is not None
        return not of_text and (of_account if several else not _TEXT_TOKENS.intersection(before[-1:]))
    return True


def _known_values(command: Sequence[str] = ()) -> list[str]:
    """Return the values that the environment, this process's command line or this command name as secrets.

    Not those that stand in other texts by chance: short ones, numbers, single words, folders.
    """
    named = [value for name, value in os.environ.items() if _is_secret(name, value)]
    named += [secret for words in (sys.argv, command) for secret in _secrets_of(tuple(words))]
    rare = {value for value in named if not _COMMON.fullmatch(value)}
    rare -= {value for value in rare if len(value) < 4096 and "\0" not in value and os.path.exists(value)}
    rare |= {other for value in rare for other in (urllib.parse.quote(value, ""), json.dumps(value)[1:-1])}
    return sorted(rare, key=len)[::-1]


def _hidden(text: str, known: Sequence[str]) -> str:
    if "\x1b" in text and (plain := ESCAPE_SEQUENCE.sub("", text)) != text:  # a colour hides a name or a shape
        return text if (masked := _hidden(plain, known)) == plain else masked
    for value in known:
        text = text.replace(value, MASK)
    if not any(map(text.lower().__contains__, _HINTS)):  # 2 us for a tensor's name; the expressions take 20
        return text
    text = _USER_OF_URL.sub(f"{MASK}@", _SHAPES.sub(MASK, text))
    text = _LOGIN.sub(lambda match: match[0].removesuffix(match[1]) + MASK, text)
    text = _CALL.sub(lambda call: _ARGUMENT.sub(MASK, call[0]), text)
    text = _LINE.sub(_without_line, _ELEMENT.sub(_without_line, text))
    return _NAMED.sub(_without_value, _HEADER.sub(rf"\1{MASK}", text))


def _without_line(match: re.Match[str]) -> str:
    name, value = match["name"], match["value"]
    stays = (_COMMAND if match["sep"] == "=" else _CODE).match(value) or not re.search("[_-]|[A-Z]|pass|secret", name)
    begin, end = (at - match.start() for at in match.span("value"))
    return match[0] if stays or not _is_secret(name, value) else match[0][:begin] + MASK + match[0][end:]


def _without_value(match: re.Match[str]) -> str:
    name, sep = match["name"], match["sep"]
    value = match["quoted"] if match["quote"] else match["bare"]
    spaced, prose = not re.search("[=:%]", sep), re.fullmatch(r"[^=v]*:[^=]*", sep) and not match["quote"]
    if match["quote"] and spaced:  # ("HF_TOKEN", "..."), wrong password '...'
        begun = match["close"] and re.search(r"\(\\*[\"']$", match.string[: match.start()])
        spaced = not (re.search("(?i)pass[wp]|[a-z][_-][a-z]", name) and (begun or "," not in sep))
    spaced = spaced and not name.startswith("-") and not _RANDOM.fullmatch(value)
    if spaced or not _is_secret(name, value):
        return match[0]
    if _CODE.fullmatch(value) and match.string[match.end() : match.end() + 1] in ")]'\"":
        return match[0]
    if prose and not name.isupper() and "pass" not in name.lower() and not re.search(r"[0-9]|.{20}", value):
        return match[0]  # "invalid token: expected a word"
    if prose and match.string[match.start() - 1 : match.start()] == "/":
        return match[0]  # "/etc/passwd:1: no JSON"
    begin, end = (at - match.start() for at in match.span("quoted" if match["quote"] else "bare"))
    return match[0][:begin] + MASK + match[0][end:]
