"""The library of Procgen: two builds, two versions of its C interface, damaged files, and the user's own files."""

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
from dcpg.envs.library import MODES
from dcpg.envs.procgen import Procgen, pictures
from dcpg.errors import BadInput
from dcpg.tools import doctor
from tests.envs.played import played

KNOWN = library.known_pictures()
OTHER = os.environ.get("DCPG_OTHER_PROCGEN")  # .ci/run sets it to the library of procgen-gym
FUNCTIONS = " ".join(f"int {name}(void) {{ return VERSION; }}" for name in libenv.functions(1))
needs_other = pytest.mark.skipif(not OTHER, reason="DCPG_OTHER_PROCGEN does not name another library of Procgen")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Looks for the library anew, without the one that this process has loaded."""
    monkeypatch.setattr(library, "library", library.library.__wrapped__)
    return monkeypatch


USED = library.library()


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
    assert {case: found["pictures"] for case, found in here.items()} == KNOWN[USED.origin]
    rows = {what: found for what, _, found in doctor.checks()}
    assert USED.origin in rows["pictures"]
    assert rows["procgen"].endswith(f"C interface {USED.loaded.interface}, library's sha256 {USED.sha256}")


def test_the_fingerprint_tells_the_builds_apart_in_every_game_that_they_draw_differently() -> None:
    mirror, gym = KNOWN.values()
    different = {case for case in mirror if mirror[case] != gym[case]}
    games = ("bossfight", "caveflyer", "climber", "coinrun", "jumper", "ninja")
    both = [f"{game} {mode}" for game in games for mode in MODES]
    assert different == {*both, "miner easy"}
    assert doctor.different() == [case for case in mirror if case.endswith("easy") and case in different]
    assert mirror["starpilot easy"] != mirror["starpilot hard"]  # what appears late is seen, too


@needs_other
def test_the_other_build_plays_the_same_games_with_its_own_pictures(here: dict[str, dict[str, str]]) -> None:
    command = [sys.executable, "-m", "tests.envs.played"]
    done = subprocess.run(command, env=os.environ | {library.OVERRIDE: str(OTHER)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    there = json.loads(done.stdout)
    assert {case: found["course"] for case, found in there.items()} == {c: f["course"] for c, f in here.items()}
    (build,) = {name for name in KNOWN if name != USED.origin}
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
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True)  # it is finished: sees no frame
    assert "otherwise" not in done.stdout + done.stderr
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
    file.write_bytes(USED.file.read_bytes() if data is None else data)
    (folder / "assets").symlink_to(USED.assets)
    return file


def compiled(folder: Path, version: int, code: str = FUNCTIONS) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (folder / "assets").mkdir(parents=True)
    (folder / "fake.c").write_text(code)
    file = folder / "libfake.so"
    subprocess.run([compiler, "-shared", "-fPIC", f"-DVERSION={version}", "-o", file, folder / "fake.c"], check=True)
    return file


def test_a_library_of_another_interface_is_refused(tmp_path: Path, fresh: pytest.MonkeyPatch) -> None:
    fresh.setenv(library.OVERRIDE, str(compiled(tmp_path, 2)))
    with pytest.raises(BadInput, match="speaks version 2 of Procgen's C interface; dcpg speaks 1 and 3"):
        library.library()


def test_a_library_without_states_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"is not Procgen's library .*set_state"):
        libenv.Libenv(compiled(tmp_path, 1, FUNCTIONS.replace("set_state", "put_state")))


NULL = FUNCTIONS.replace("int libenv_make(void) { return VERSION; }", "void *libenv_make(void) { return 0; }")
SLOW = FUNCTIONS + " extern int sleep(int); __attribute__((constructor)) void wait(void) { sleep(60); }"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda folder: folder / "nothing.so", "which is not a file"),
        (lambda folder: copied(folder, b"not a library"), "cannot be used: .*(invalid ELF header|too short)"),
        (lambda folder: copied(folder, USED.file.read_bytes()[:200_000]), "cannot be used: it ended the process"),
        (lambda folder: compiled(folder / "own", 1).rename(folder / "lone.so"), "The pictures of .* are missing"),
        (lambda folder: compiled(folder, 1, NULL), "made no environments"),
        (lambda folder: compiled(folder, 1, SLOW), "made no environment in 1 seconds"),
    ],
)
def test_a_users_file_that_cannot_be_used(make, sentence: str, tmp_path: Path, fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(library, "SECONDS", 1 if "1 seconds" in sentence else 60)
    fresh.setenv(library.OVERRIDE, str(make(tmp_path)))
    with pytest.raises(BadInput, match=sentence):
        library.library()


def test_a_library_without_its_pictures_does_not_end_the_process(tmp_path: Path, fresh: pytest.MonkeyPatch) -> None:
    """The library itself would: it exits when a picture is missing."""
    assets = tmp_path / "assets"
    assets.mkdir()
    fresh.setattr(library, "ASSETS", (os.path.relpath(assets, USED.file.resolve().parent),))
    fresh.setenv(library.OVERRIDE, str(USED.file))
    with pytest.raises(BadInput, match=r"cannot be used: .*failed to load image"):
        library.library()


def test_a_users_file_is_used_and_named(fresh: pytest.MonkeyPatch) -> None:
    """Also by a relative path, which dlopen would look for elsewhere."""
    fresh.chdir(USED.file.parent)
    fresh.setenv(library.OVERRIDE, library.FILE)
    found = library.library()
    assert (found.file, found.assets) == (USED.file, USED.assets)
    assert found.name == f"own, sha256 {USED.sha256[:16]}"


def test_a_damaged_package_is_refused_before_it_is_loaded(tmp_path: Path, fresh: pytest.MonkeyPatch) -> None:
    whole = USED.file.read_bytes()
    file = copied(tmp_path / "procgen" / "data", whole[:-1] + bytes([whole[-1] ^ 1]))
    digest = base64.urlsafe_b64encode(hashlib.sha256(whole).digest()).rstrip(b"=").decode()
    info, qt = tmp_path / "procgen_mirror-0.10.7.dist-info", tmp_path / "procgen_mirror.libs" / "libQt5.so"
    info.mkdir()
    qt.parent.mkdir()
    qt.write_bytes(b"Qt" * 500)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: procgen_mirror\nVersion: 0.10.7\n")
    listed = [f"procgen/data/prebuilt/{library.FILE},sha256={digest},{len(whole)}"]
    listed += ["procgen_mirror.libs/libQt5.so,sha256=a,1000", "procgen/other.py,,", "odd"]
    (info / "RECORD").write_text("\n".join(listed))
    fresh.setattr(library, "installed", lambda: ("procgen-mirror", PathDistribution(info)))
    advice = r"damaged or missing; run: pip install --force-reinstall --no-deps procgen-mirror==0\.10\.7"
    with pytest.raises(BadInput, match=advice):
        library.library()
    file.write_bytes(whole)
    assert library.library().origin == "procgen-mirror 0.10.7"
    for path in (qt, file):
        kept = path.read_bytes()
        path.write_bytes(kept[: len(kept) // 2])
        with pytest.raises(BadInput, match=advice):
            library.library()
        path.write_bytes(kept)
    (tmp_path / "procgen" / "data" / "assets").unlink()
    with pytest.raises(BadInput, match=advice):
        library.library()


def test_without_procgen_a_sentence_says_what_to_do(fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(library, "installed", lambda: None)
    with pytest.raises(BadInput, match=r"Procgen is not installed.*DCPG_PROCGEN=.*docs/own-environment.md"):
        library.library()


def test_the_command_ends_with_2_for_a_library_that_cannot_be_used(tmp_path: Path) -> None:
    file = copied(tmp_path, b"\x7fELF damaged")
    command = [sys.executable, "-m", "dcpg", "train", "ppo", "--game", "maze", "--preset", "tiny", "--out"]
    environment = os.environ | {library.OVERRIDE: str(file)}
    done = subprocess.run([*command, str(tmp_path / "run")], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith(f"dcpg: DCPG_PROCGEN names {file}, which cannot be used")
    assert not (tmp_path / "run").exists()
