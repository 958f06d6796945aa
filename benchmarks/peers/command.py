"""`python -m benchmarks.peers`: the same scripts through each peer, in an environment of its own, and through
`tunecheck watch`. `python -m benchmarks.detection report` writes the table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.causes import BUG
from benchmarks.peers.peers import PEERS, Peer
from benchmarks.peers.results import names_cause, record, rows
from benchmarks.releases.environment import environment, kept_or_temporary
from tunecheck.cli.parser import Parser, run_command
from tunecheck.core.errors import ConfigError, SuiteError
from tunecheck.core.paths import project_folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the peers and return 0 where tunecheck names every mistake and flags nothing healthy."""
    parser = Parser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--only", action="append", metavar="PEER", help="only this peer; may be repeated")
    parser.add_argument("--script", action="append", metavar="NAME", help="only this script; may be repeated")
    parser.add_argument("--list", action="store_true", help="list the peers and install nothing")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the environments in this folder, and use it")
    parser.set_defaults(command=_try_peers)
    return run_command(parser, arguments)


def _try_peers(options: Any) -> int:
    if options.list:
        for peer in PEERS.values():
            _say(f"{peer.name}: {' '.join(peer.packages) or 'no package'}: {peer.attached}")
        return 0
    names = options.only or list(PEERS)
    if unknown := [name for name in names if name not in PEERS]:
        way_out = "`python -m benchmarks.peers --list` lists them"
        raise ConfigError([f"no peer is called {name!r}: {way_out}" for name in unknown])
    scripts = _scripts(options.script or [])
    for name in names:
        with kept_or_temporary(options.keep) as folder:
            for answer in try_peer(PEERS[name], scripts, folder, keep=options.keep is not None):
                record(PEERS[name], answer)
                _say(f"{name}: {line_of(answer)}")
    own = [row for row in rows() if row.peer.name == "tunecheck watch"]
    return int(any(len(row.named) < row.bugs or row.healthy_flagged or row.problems for row in own))


def _scripts(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return kind and name of these scripts, or of all. Raises ConfigError for an unknown one."""
    from benchmarks.peers.scenarios import scenarios

    found = [(one.kind, one.name) for one in scenarios() if not names or one.name in names]
    if unknown := sorted(set(names) - {name for _, name in found}):
        way_out = "`python -m benchmarks.scripts list` lists them"
        raise ConfigError([f"no script is called {name!r}: {way_out}" for name in unknown])
    return found


def try_peer(peer: Peer, scripts: Sequence[tuple[str, str]], folder: Path, *, keep: bool) -> Iterator[dict[str, Any]]:
    """Yield what the peer says of each script. Raises SuiteError where its environment cannot be made, or it breaks."""
    with environment(folder / peer.adapter, peer.packages, keep=keep) as python:
        path = os.pathsep.join([str(project_folder()), *filter(None, [os.environ.get("PYTHONPATH")])])
        quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
        process = subprocess.Popen(
            [str(python), "-m", "benchmarks.peers.worker", peer.adapter],
            env={**os.environ, **quiet, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(list(scripts)))
        process.stdin.close()
        yield from map(json.loads, process.stdout)
        if process.wait():
            raise SuiteError(f"{peer.name}: its process ended with {process.returncode}")


def line_of(answer: dict[str, Any]) -> str:
    """Return the answer in one line."""
    if answer["problem"]:
        return f"{answer['name']}: not tried: {answer['problem']}"
    said = answer["said"]
    named = [m for m in said if answer["kind"] == BUG and names_cause(answer["name"], m)]
    word = "named" if named else "flagged" if said else "nothing"
    return f"{answer['kind']} {answer['name']}: {word}{': ' + (named or said)[0] if said else ''}"


def _say(line: str) -> None:
    print(line, file=sys.stdout, flush=True)
