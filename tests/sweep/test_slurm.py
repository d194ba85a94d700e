"""The example scripts for SLURM: signals are passed on, and only after exit code 75 the job is queued again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "examples/slurm"
PATIENCE = 60.0

# Every command writes down its arguments; the token that it finds goes to another file.
SAYS = """#!/bin/bash
echo "${0##*/} $*" >>"$CALLS"
"""
STUBS = {
    # the options are srun's own, the rest is the command; a step ends with its job
    "srun": SAYS + 'while [[ $1 == --* ]]; do shift; done\nexec "$@"\n',
    "scontrol": SAYS + 'if [[ $1 == show ]]; then printf "one\\ntwo\\n"; fi\n',
    "hostname": SAYS + 'echo "10.0.0.1 fd00::1"\n',
    "ray": SAYS
    + """
if [[ $1 == start ]]; then
    echo "$RAY_AUTH_MODE $RAY_AUTH_TOKEN" >>"$CALLS.tokens"
    exec sleep 600
fi
# the head answers once it has been started, and not at the first question
grep -q -e --head "$CALLS" && (( $(grep -c health-check "$CALLS") > 1 ))
""",
    "dcpg": SAYS
    + """
echo "$RAY_AUTH_MODE $RAY_AUTH_TOKEN" >>"$CALLS.tokens"
[[ -z $ENDS ]] || exit "$ENDS"
saved() { sleep 0.5; echo "saved" >>"$CALLS"; exit 75; }
trap saved USR1
touch "$CALLS.ready"
for _ in $(seq 600); do sleep 0.1; done
""",
}


class Job:
    """A batch script that calls stubs instead of the real commands."""

    def __init__(self, folder: Path, script: str, *words: str, ends: str = "", nodes: int = 2) -> None:
        self.calls_file = folder / "calls"
        commands = folder / "commands"
        commands.mkdir(exist_ok=True)
        for name, text in STUBS.items():
            (commands / name).write_text(text)
            (commands / name).chmod(0o755)
        environment = {
            "PATH": f"{commands}:{os.environ['PATH']}", "CALLS": str(self.calls_file), "ENDS": ends,
            "SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "[one-two]", "SLURM_JOB_NUM_NODES": str(nodes),
            "SLURM_CPUS_PER_TASK": "8", "SLURM_GPUS_ON_NODE": "2",
        }  # fmt: skip
        command = [shutil.which("bash") or "bash", str(SCRIPTS / script), *words]
        self.process = subprocess.Popen(command, env=environment, cwd=folder, text=True, stderr=subprocess.PIPE)

    def calls(self) -> list[str]:
        return self.calls_file.read_text().splitlines() if self.calls_file.exists() else []

    def until_it_trains(self) -> None:
        end = time.monotonic() + PATIENCE
        while not Path(f"{self.calls_file}.ready").exists():
            assert time.monotonic() < end
            time.sleep(0.05)

    def wait(self) -> int:
        _, err = self.process.communicate(timeout=PATIENCE)
        assert "unbound variable" not in err
        assert "syntax error" not in err
        return self.process.returncode


def of(calls: list[str], *starts: str) -> list[str]:
    return [call for call in calls if call.startswith(starts)]


@pytest.mark.parametrize("script", ["sweep.sbatch", "train.sbatch"])
def test_the_scripts_can_be_read(script: str) -> None:
    assert subprocess.run(["bash", "-n", str(SCRIPTS / script)], capture_output=True).returncode == 0
    lines = (SCRIPTS / script).read_text().splitlines()
    assert "#SBATCH --signal=B:USR1@120" in lines
    assert "#SBATCH --requeue" in lines
    shellcheck = shutil.which("shellcheck")
    if shellcheck:
        assert subprocess.run([shellcheck, str(SCRIPTS / script)], capture_output=True).stdout == b""


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_sweep_is_saved_and_queued_again(tmp_path: Path, number: signal.Signals) -> None:
    job = Job(tmp_path, "sweep.sbatch", "table1", "/shared/table1", "--set", "machine.device=cuda")
    job.until_it_trains()
    os.kill(job.process.pid, number)
    assert job.wait() == 75
    calls = job.calls()
    assert of(calls, "ray start") == [
        "ray start --head --node-ip-address=10.0.0.1 --port=6379 --include-dashboard=false --num-cpus=8 --num-gpus=2 "
        "--block",
        "ray start --address=10.0.0.1:6379 --num-cpus=8 --num-gpus=2 --block",
    ]
    assert of(calls, "dcpg") == [
        "dcpg sweep table1 --engine ray --address 10.0.0.1:6379 --out /shared/table1 --set machine.device=cuda"
    ]
    assert calls[-2:] == ["saved", "scontrol requeue 77"]  # in this order
    tokens = Path(f"{job.calls_file}.tokens").read_text().splitlines()
    assert len(tokens) == 3
    (token,) = {line.removeprefix("token ") for line in tokens}
    assert len(token) == 64
    assert not any(token in call for call in calls)


@pytest.mark.parametrize(("ends", "again"), [("0", False), ("1", False), ("2", False), ("75", True)])
def test_the_sweeps_exit_code_decides(tmp_path: Path, ends: str, again: bool) -> None:
    job = Job(tmp_path, "sweep.sbatch", "own.toml", ends=ends, nodes=1)
    assert job.wait() == int(ends)
    calls = job.calls()
    assert of(calls, "dcpg") == ["dcpg sweep own.toml --engine ray --address 10.0.0.1:6379 --out sweeps/own"]
    assert len(of(calls, "ray start")) == 1
    assert bool(of(calls, "scontrol requeue")) == again


def test_a_run_is_started_saved_queued_again_and_resumed(tmp_path: Path) -> None:
    words = ("runs/a b", "ddcpg", "--game", "bigfish", "--seed", "0")
    job = Job(tmp_path, "train.sbatch", *words)
    job.until_it_trains()
    os.kill(job.process.pid, signal.SIGUSR1)
    assert job.wait() == 75
    assert job.calls() == ["dcpg train ddcpg --game bigfish --seed 0 --out runs/a b", "saved", "scontrol requeue 77"]
    (tmp_path / "runs/a b").mkdir(parents=True)
    (tmp_path / "runs/a b/config.json").touch()
    job.calls_file.unlink()
    job = Job(tmp_path, "train.sbatch", *words, ends="0")
    assert job.wait() == 0
    assert job.calls() == ["dcpg resume runs/a b"]


@pytest.mark.parametrize("ends", ["3", "7"])
def test_a_run_that_failed_is_not_queued_again(tmp_path: Path, ends: str) -> None:
    job = Job(tmp_path, "train.sbatch", "run", "ppo", ends=ends)
    assert job.wait() == int(ends)
    assert of(job.calls(), "scontrol") == []
