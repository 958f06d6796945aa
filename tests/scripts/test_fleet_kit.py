"""The kit for clusters: a prolog and a job that look at a node for a minute, a Job of Kubernetes."""

from __future__ import annotations

import os
import subprocess

import pytest
from ruamel.yaml import YAML

from tunecheck.cli import main
from tunecheck.core.paths import project_folder

KIT = project_folder() / "kit"
TUNECHECK = """#!/bin/sh
echo "$@" >>"$CALLS"
echo "  gpu: some progress"
echo "verdict: FAIL — 2 places on 1 node: 1 pass, 1 fail"
[ -z "$SLEEP" ] || sleep "$SLEEP"
exit "$STATUS"
"""
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
"$@"
"""


@pytest.fixture
def run(tmp_path):
    """Run a script of the kit with a made-up tunecheck and srun; return the process and the calls of tunecheck."""
    for name, text in (("tunecheck", TUNECHECK), ("srun", SRUN), ("python", "#!/bin/sh\necho trains\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    calls = tmp_path / "calls"

    def call(script, status=0, **variables):
        environment = {
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "TUNECHECK": str(tmp_path / "tunecheck"),
            "TUNECHECK_REPORTS": str(tmp_path / "reports"),
            "CALLS": str(calls),
            "STATUS": str(status),
            "SLURM_JOB_ID": "7",
            "SLURMD_NODENAME": "n3",
            **variables,
        }
        done = subprocess.run(["bash", str(script)], env=environment, capture_output=True, text=True, timeout=30)
        return done, calls.read_text().splitlines() if calls.exists() else []

    call.folder = tmp_path
    return call


@pytest.mark.parametrize(
    ("status", "lets_pass"), [(0, True), (1, False), (2, False), (4, False), (6, False), (7, True), (127, False)]
)
def test_the_prolog_keeps_a_job_from_a_node_that_fails_or_could_not_be_judged(run, status, lets_pass):
    """Unless it is told to let the latter pass."""
    lenient, _ = run(KIT / "slurm" / "prolog.sh", status, SLURM_JOB_GPUS="0", TUNECHECK_PROLOG_UNJUDGED="pass")
    assert (lenient.returncode == 0) is (status != 1)
    (run.folder / "calls").unlink()
    done, calls = run(KIT / "slurm" / "prolog.sh", status, CUDA_VISIBLE_DEVICES="0,1")

    assert (done.returncode == 0) is lets_pass
    assert calls == ["fleet --engine local --time 55s --require-gpu quick"]
    assert ("1 fail" in done.stderr) is not lets_pass


def test_the_prolog_takes_no_longer_than_it_may(run):
    """A hang is no verdict."""
    done, _ = run(KIT / "slurm" / "prolog.sh", SLEEP="20", TUNECHECK_PROLOG_SECONDS="1", SLURM_JOB_GPUS="0")

    assert done.returncode == 1
    assert "not judged (status 124)" in done.stderr


def test_the_prolog_asks_nothing_for_a_job_without_cards(run):
    """It costs a job on processors nothing."""
    assert run(KIT / "slurm" / "prolog.sh", 1)[1] == []


@pytest.mark.parametrize(("status", "trains"), [(0, True), (6, True), (1, False)])
def test_a_job_does_not_train_on_a_node_that_fails(run, status, trains):
    """And says which one it is."""
    done, _ = run(KIT / "slurm" / "job.sbatch", status)

    assert ("trains" in done.stdout) is trains
    assert ("tunecheck: n3 fails" in done.stdout) is not trains
    assert ("tunecheck: n3 was not judged" in done.stdout) is (status == 6)
    assert (done.returncode == 0) is trains


def test_the_job_of_kubernetes_asks_a_command_that_exists(capsys):
    """Its schema was checked by kubernetes-validate; here what it says about tunecheck, and that its GPUs are equal."""
    job = YAML(typ="safe").load((KIT / "kubernetes" / "job.yaml").read_text())
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    cards = {container["resources"][kind]["nvidia.com/gpu"] for kind in ("requests", "limits")}
    (rule,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    volumes = {volume["name"] for volume in pod["volumes"]}

    assert cards == {"8"}
    assert rule["labelSelector"]["matchLabels"].items() <= job["spec"]["template"]["metadata"]["labels"].items()
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert container["command"][0] == "tunecheck"
    with pytest.raises(SystemExit, match="0"):
        main([*container["command"][1:], "--help"])
    assert "--engine" in capsys.readouterr().out
