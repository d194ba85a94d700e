"""Which library of Procgen is used: that of an installed package, or a file of the user's own.

There are several builds of Procgen. They play the same games, but some draw some sprites differently; so a run keeps
the name of its library and a fingerprint of the pictures of its game.
"""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from dcpg.envs.libenv import Libenv
from dcpg.errors import BadInput

OVERRIDE = "DCPG_PROCGEN"  # the environment variable with the path of one's own library
PACKAGES = {"procgen-gym": "procgen_gym", "procgen-mirror": "procgen", "procgen": "procgen"}  # and their modules
FILE = {"win32": "env.dll", "darwin": "libenv.dylib"}.get(sys.platform, "libenv.so")
ASSETS = ("assets", "../assets", "../../data/assets")  # from the library's folder: packages, builds from source
TRIAL = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).libenv_version"


@dataclass(frozen=True)
class Library:
    """A file with Procgen, its pictures, and the package that it came with."""

    file: Path
    assets: Path
    package: str  # its name and version; "own" for a file that the user gave

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.file.read_bytes()).hexdigest()

    @cached_property
    def c(self) -> Libenv:
        """The library, loaded."""
        return Libenv(self.file)

    @property
    def name(self) -> str:
        """What tells it from other builds: its package and the beginning of the file's hash."""
        return f"{self.package}, sha256 {self.sha256[:16]}"


def package() -> Distribution | None:
    """The installed package that has Procgen."""
    for name in PACKAGES:
        try:
            return distribution(name)
        except PackageNotFoundError:
            continue
    return None


@cache
def library() -> Library:
    """The library that this process uses; a missing or damaged one is refused before it is loaded."""
    own = os.environ.get(OVERRIDE)
    if own:
        return _own(Path(own))
    found = package()
    if found is None:
        raise BadInput(
            "Procgen is not installed; run: pip install dcpg   (Linux on x86-64), or set "
            f"{OVERRIDE}=/path/to/{FILE}, or train on your own environment (docs/own-environment.md)."
        )
    data = f"{PACKAGES[found.name]}/data"
    file = Path(str(found.locate_file(f"{data}/prebuilt/{FILE}")))
    used = Library(file, Path(str(found.locate_file(f"{data}/assets"))), f"{found.name} {found.version}")
    if not file.is_file() or _recorded(found, f"{data}/prebuilt/{FILE}") not in (None, used.sha256):
        raise BadInput(
            f"The library of {used.package} is damaged or missing; run: "
            f"pip install --force-reinstall --no-deps {found.name}=={found.version}"
        )
    return used


def _recorded(found: Distribution, name: str) -> str | None:
    """The hash that the package's list of files has for a file, if it has one."""
    for line in (found.read_text("RECORD") or "").splitlines():
        if line.startswith(f"{name},sha256="):
            digest = line.split(",")[1].removeprefix("sha256=")
            return base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()
    return None


def _own(file: Path) -> Library:
    if not file.is_file():
        raise BadInput(f"{OVERRIDE} names {file}, which is not a file; give it the path of a {FILE}.")
    # loading a cut or damaged file can end the process, so another one tries it first
    trial = [sys.executable, "-I", "-S", "-c", TRIAL, str(file)]
    tried = subprocess.run(trial, check=False, capture_output=True, text=True)  # noqa: S603
    if tried.returncode:
        why = (tried.stderr.strip().splitlines() or [f"it ended the process, code {tried.returncode}"])[-1]
        raise BadInput(f"{OVERRIDE} names {file}, which is not a library of Procgen ({why}).")
    folders = [(file.resolve().parent / where).resolve() for where in ASSETS]
    assets = next((folder for folder in folders if folder.is_dir()), None)
    if assets is None:
        raise BadInput(f"The pictures of {file} are missing; they belong into the folder {folders[1]}.")
    return Library(file, assets, "own")
