"""The library of Procgen: two builds, two versions of its C interface, damaged files, and files of one's own."""

from __future__ import annotations

import base64
import ctypes
import hashlib
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import PathDistribution
from pathlib import Path

import numpy as np
import pytest

import dcpg
from dcpg.envs import libenv, library
from dcpg.envs.procgen import MODES, Procgen, pictures
from dcpg.errors import BadInput
from dcpg.tools import doctor
from tests.envs.played import played

KNOWN = json.loads((Path(__file__).parents[1] / "data" / "pictures.json").read_text())
OTHER = os.environ.get("DCPG_OTHER_PROCGEN")  # .ci/run sets it to the library of procgen-gym
FUNCTIONS = " ".join(f"int {name}(void) {{ return VERSION; }}" for name in libenv.FUNCTIONS)
needs_other = pytest.mark.skipif(not OTHER, reason="DCPG_OTHER_PROCGEN does not name another library of Procgen")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Looks for the library anew, without the one that this process has loaded."""
    monkeypatch.setattr(library, "library", library.library.__wrapped__)
    return monkeypatch


def installed() -> library.Library:
    found = library.package()
    assert found is not None
    return library.library()


def test_the_structures_have_the_layout_of_the_header() -> None:
    """Offsets as a C compiler lays them out on 64 bits: versions 1 and 3 differ in the order only."""
    one, three = (libenv.INTERFACES[version] for version in (1, 3))
    assert (one[0].shape.offset, one[0].ndim.offset, ctypes.sizeof(one[0])) == (136, 200, 212)
    assert (three[0].ndim.offset, three[0].shape.offset, ctypes.sizeof(three[0])) == (136, 140, 212)
    order = [[name for name, _ in interface[1]._fields_] for interface in (one, three)]
    assert order == [["ob", "rew", "first", "info", "ac"], ["ob", "ac", "info", "rew", "first"]]
    assert ctypes.sizeof(libenv._Option) == 144


@pytest.fixture(scope="module")
def here() -> dict[str, dict[str, str]]:
    return played()


def test_the_installed_library_draws_as_its_build_does(here: dict[str, dict[str, str]]) -> None:
    assert {case: found["pictures"] for case, found in here.items()} == KNOWN[installed().package]
    rows = {what: found for what, _, found in doctor.checks()}
    assert installed().package in rows["pictures"]
    assert rows["procgen"].endswith(f"C interface {installed().c.interface}, library's sha256 {installed().sha256}")


def test_the_fingerprint_tells_the_builds_apart_in_every_game_that_they_draw_differently() -> None:
    mirror, gym = KNOWN.values()
    different = {case for case in mirror if mirror[case] != gym[case]}
    games = ("bossfight", "caveflyer", "climber", "coinrun", "jumper", "ninja")
    both = [f"{game} {mode}" for game in games for mode in MODES]
    assert different == {*both, "miner easy"}
    assert set(doctor.DIFFERENT) == {case.split()[0] for case in different}


@needs_other
def test_the_other_build_plays_the_same_games_with_its_own_pictures(here: dict[str, dict[str, str]]) -> None:
    command = [sys.executable, "-m", "tests.envs.played"]
    done = subprocess.run(command, env=os.environ | {library.OVERRIDE: str(OTHER)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    there = json.loads(done.stdout)
    assert {case: found["course"] for case, found in there.items()} == {c: f["course"] for c, f in here.items()}
    (build,) = {name for name in KNOWN if name != installed().package}
    assert {case: found["pictures"] for case, found in there.items()} == KNOWN[build]


@needs_other
def test_a_run_resumed_with_the_other_build_says_so(tmp_path: Path) -> None:
    out = tmp_path / "run"
    dcpg.train("ppo", "bossfight", preset="tiny", steps=256, settings={"evaluation.episodes": 2}, out=out)
    command = [sys.executable, "-m", "dcpg", "resume", str(out), "--steps", "512"]
    environment = os.environ | {library.OVERRIDE: str(OTHER)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Procgen draws bossfight otherwise here (own, sha256" in " ".join((done.stdout + done.stderr).split())
    config, summary = (json.loads((out / name).read_text()) for name in ("config.json", "summary.json"))
    assert config["procgen"]["interface"] != config["procgen_later"][0]["interface"]
    assert summary["pictures"] == [config["procgen"]["pictures"], config["procgen_later"][0]["pictures"]]
    done = subprocess.run([*command[:-1], "768"], env=environment, capture_output=True, text=True)
    assert "otherwise" not in done.stdout + done.stderr
    assert len(json.loads((out / "summary.json").read_text())["pictures"]) == 2


def test_environments_that_were_closed_cannot_be_used() -> None:
    env = Procgen(1, "maze", seed=0)
    env.close()
    env.close()
    with pytest.raises(AttributeError):
        env.step(np.zeros(1, np.int64))


def test_a_fingerprint_is_the_same_each_time() -> None:
    assert pictures.__wrapped__("maze", "easy") == pictures("maze", "easy")
    assert pictures("maze", "easy") != pictures("maze", "hard")


def copied(folder: Path, data: bytes | None = None) -> Path:
    """A copy of the installed library beside a link to its pictures."""
    (folder / "prebuilt").mkdir(parents=True)
    file = folder / "prebuilt" / library.FILE
    file.write_bytes(installed().file.read_bytes() if data is None else data)
    (folder / "assets").symlink_to(installed().assets)
    return file


def compiled(folder: Path, version: int) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (folder / "assets").mkdir(parents=True)
    (folder / "fake.c").write_text(FUNCTIONS)
    file = folder / "libfake.so"
    subprocess.run([compiler, "-shared", "-fPIC", f"-DVERSION={version}", "-o", file, folder / "fake.c"], check=True)
    return file


def test_a_library_of_another_interface_is_refused(tmp_path: Path, fresh: pytest.MonkeyPatch) -> None:
    fresh.setenv(library.OVERRIDE, str(compiled(tmp_path, 2)))
    with pytest.raises(BadInput, match="speaks version 2 of Procgen's C interface; dcpg speaks 1 and 3"):
        _ = library.library().c


def test_a_library_without_states_is_refused(tmp_path: Path) -> None:
    file = compiled(tmp_path, 1)
    (tmp_path / "fake.c").write_text(FUNCTIONS.replace("set_state", "put_state"))
    subprocess.run(["cc", "-shared", "-fPIC", "-DVERSION=1", "-o", file, tmp_path / "fake.c"], check=True)
    with pytest.raises(BadInput, match=r"is not Procgen's library .*set_state"):
        libenv.Libenv(file)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda folder: folder / "nothing.so", "which is not a file"),
        (lambda folder: copied(folder, b"not a library"), "not a library of Procgen .*invalid ELF header|too short"),
        (lambda folder: copied(folder, installed().file.read_bytes()[:200_000]), "not a library of Procgen"),
        (lambda folder: compiled(folder / "own", 1).rename(folder / "lone.so"), "The pictures of .* are missing"),
    ],
)
def test_a_file_of_ones_own_that_cannot_be_used(make, sentence: str, tmp_path: Path, fresh: pytest.MonkeyPatch) -> None:
    fresh.setenv(library.OVERRIDE, str(make(tmp_path)))
    with pytest.raises(BadInput, match=sentence):
        library.library()


def test_a_file_of_ones_own_is_used_and_named(fresh: pytest.MonkeyPatch) -> None:
    fresh.setenv(library.OVERRIDE, str(installed().file))
    found = library.library()
    assert found.name == f"own, sha256 {installed().sha256[:16]}"
    assert found.assets == installed().assets


def test_a_damaged_package_is_refused_before_it_is_loaded(tmp_path: Path, fresh: pytest.MonkeyPatch) -> None:
    whole = installed().file.read_bytes()
    file = copied(tmp_path / "procgen" / "data", whole[:-1] + bytes([whole[-1] ^ 1]))
    digest = base64.urlsafe_b64encode(hashlib.sha256(whole).digest()).rstrip(b"=").decode()
    info = tmp_path / "procgen_mirror-0.10.7.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: procgen-mirror\nVersion: 0.10.7\n")
    (info / "RECORD").write_text(f"procgen/data/prebuilt/{library.FILE},sha256={digest},{len(whole)}\n")
    fresh.setattr(library, "package", lambda: PathDistribution(info))
    with pytest.raises(BadInput, match=r"pip install --force-reinstall --no-deps procgen-mirror==0\.10\.7"):
        library.library()
    file.write_bytes(whole)
    assert library.library().package == "procgen-mirror 0.10.7"
    file.unlink()
    with pytest.raises(BadInput, match="damaged or missing"):
        library.library()


def test_without_procgen_a_sentence_says_what_to_do(fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(library, "package", lambda: None)
    with pytest.raises(BadInput, match=r"Procgen is not installed.*DCPG_PROCGEN=.*docs/own-environment.md"):
        library.library()


def test_the_command_ends_with_2_for_a_library_that_cannot_be_used(tmp_path: Path) -> None:
    file = copied(tmp_path, b"\x7fELF damaged")
    command = [sys.executable, "-m", "dcpg", "train", "ppo", "--game", "maze", "--preset", "tiny", "--out"]
    environment = os.environ | {library.OVERRIDE: str(file)}
    done = subprocess.run([*command, str(tmp_path / "run")], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith(f"dcpg: DCPG_PROCGEN names {file}, which is not a library")
    assert not (tmp_path / "run").exists()
