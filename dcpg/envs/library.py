"""Which library of Procgen is used: that of an installed package, or a file of the user's own.

There are several builds of Procgen. They play the same games, but some draw some sprites differently; so a run keeps
the name of its library and a fingerprint of the pictures of its game.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import sys
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from dcpg.envs.libenv import Environments, Libenv
from dcpg.envs.trial import second_process
from dcpg.errors import BadInput

OVERRIDE = "DCPG_PROCGEN"  # the environment variable with the path of the user's own library
PACKAGES = {"procgen-gym": "procgen_gym", "procgen-mirror": "procgen", "procgen": "procgen"}  # and their modules
FILE = {"win32": "env.dll", "darwin": "libenv.dylib"}.get(sys.platform, "libenv.so")
ASSETS = ("assets", "../assets", "../../data/assets")  # from the library's folder: packages, builds from source
MODES = {"easy": 0, "hard": 1}
NUM_ACTIONS = 15
SECONDS = 60  # that the trial of the user's own library may take


@dataclass(frozen=True)
class Library:
    """A file with Procgen, its pictures, and the package that it came with."""

    file: Path
    assets: Path
    origin: str  # the package and its version; "own" for a file that the user gave

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.file.read_bytes()).hexdigest()

    @cached_property
    def loaded(self) -> Libenv:
        """The library in this process."""
        return Libenv(self.file)

    @property
    def name(self) -> str:
        """What tells it from other builds: its package and the beginning of the file's hash."""
        return f"{self.origin}, sha256 {self.sha256[:16]}"

    def make(
        self,
        num: int,
        game: str,
        mode: str,
        *,
        start: int,
        count: int,
        seed: int,
        threads: int = 0,
        render: bool = False,
    ) -> Environments:
        """N environments of a game. All options besides these are Procgen's defaults."""
        options: dict[str, str | bool | int] = {
            "env_name": game,
            "distribution_mode": MODES[mode],
            "start_level": start,
            "num_levels": count,
            "rand_seed": seed,
            "num_actions": NUM_ACTIONS,
            "num_threads": threads,
            "render_human": render,
            "center_agent": True,
            "use_backgrounds": True,
            "use_generated_assets": False,
            "use_monochrome_assets": False,
            "restrict_themes": False,
            "paint_vel_info": False,
            "use_sequential_levels": False,
            "debug_mode": 0,
            "resource_root": f"{self.assets}/",
        }
        return self.loaded.make(num, options)


def installed() -> tuple[str, Distribution] | None:
    """The name and the contents of the package that has Procgen."""
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            return name, distribution(name)
    return None


@cache
def library() -> Library:
    """The library that this process uses; a missing or damaged one is refused before it is loaded."""
    own = os.environ.get(OVERRIDE)
    if own:
        return _own(Path(own).expanduser().absolute())
    found = installed()
    if found is None:
        raise BadInput(
            "Procgen is not installed; run: pip install dcpg   (Linux on x86-64), or set "
            f"{OVERRIDE}=/path/to/{FILE}, or train on your own environment (docs/own-environment.md)."
        )
    name, package = found
    file, assets = (_place(package, f"{PACKAGES[name]}/data/{part}") for part in (f"prebuilt/{FILE}", "assets"))
    used = Library(file, assets, f"{name} {package.version}")
    if not file.is_file() or not assets.is_dir() or not _whole(package, used):
        raise BadInput(
            f"The files of {used.origin} are damaged or missing; run: "
            f"pip install --force-reinstall --no-deps {name}=={package.version}"
        )
    return used


def _place(package: Distribution, name: str) -> Path:
    return Path(str(package.locate_file(name)))


def _whole(package: Distribution, used: Library) -> bool:
    """Whether the library has the hash, and what it loads the sizes, that the package's list of files says."""
    digest = base64.urlsafe_b64encode(bytes.fromhex(used.sha256)).rstrip(b"=").decode()
    for line in (package.read_text("RECORD") or "").splitlines():
        name, hashed, size = [*line.rsplit(",", 2), "", ""][:3]
        file = _place(package, name)
        if file == used.file and hashed not in ("", f"sha256={digest}"):
            return False
        loaded = "/data/assets/" in name or name.split("/")[0].endswith(".libs")
        if loaded and not (file.is_file() and size in ("", str(file.stat().st_size))):
            return False
    return True


def _own(file: Path) -> Library:
    if not file.is_file():
        raise BadInput(f"{OVERRIDE} names {file}, which is not a file; give it the path of a {FILE}.")
    folders = [(file.resolve().parent / where).resolve() for where in ASSETS]
    assets = next((folder for folder in folders if folder.is_dir()), None)
    if assets is None:
        raise BadInput(f"The pictures of {file} are missing; they belong into the folder {folders[1]}.")
    # loading a damaged file can end the process, so another one tries it first
    tried = second_process(__name__, "try_library", [str(file), str(assets)], SECONDS)
    if not tried.done:
        why = tried.why if tried.code is not None else f"it made no environment in {SECONDS} seconds"
        raise BadInput(f"{OVERRIDE} names {file}, which cannot be used: {why}")
    return Library(file, assets, "own")


def try_library(file: str, assets: str) -> None:
    """In the second process: make an environment; a refusal is printed."""
    try:
        Library(Path(file), Path(assets), "").make(1, "maze", "easy", start=0, count=1, seed=0).observe()
    except (BadInput, KeyError) as error:
        sys.exit(str(error))


@cache
def known_pictures() -> dict[str, dict[str, str]]:
    """Fingerprints of the known builds: package and version -> "game mode" -> fingerprint."""
    found: dict[str, dict[str, str]] = json.loads((resources.files("dcpg.envs") / "pictures.json").read_text())
    return found
