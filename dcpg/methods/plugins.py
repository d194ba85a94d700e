"""Methods and encoders from outside the package.

A plugin is a file or a module with `@method` or `@encoder` declarations. It comes from the user: from `--plugin`, from
the variable DCPG_PLUGINS, or from an installed package with an entry point in the group `dcpg.plugins`. The last two
are loaded only when a name is unknown. What a run used is recorded in its config.json, but never imported from there.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from dcpg.core.encoders import ENCODERS, Encoder
from dcpg.core.registry import Registry, source_of
from dcpg.errors import BadInput, short, unknown
from dcpg.methods.table import METHODS, Spec
from dcpg.text import LONGEST_SOURCE, for_audience, is_name, printable

T = TypeVar("T")
GROUP = "dcpg.plugins"  # of entry points
VARIABLE = "DCPG_PLUGINS"
MOST_USED = 20  # recorded of one run, which has a method and an encoder
TABLES: dict[str, Registry[Any]] = {"method": METHODS, "encoder": ENCODERS}


@dataclass(frozen=True)
class Plugin:
    """Where declarations come from, as `--plugin` takes it, and a hash of the file."""

    source: str  # the absolute path of a file, or a module's name
    sha256: str  # empty: there is no file
    folder: str = ""  # that must be on Python's path for the module to be found; empty: it is installed

    def plain(self) -> dict[str, str]:
        """As JSON data, for the processes of a sweep or a benchmark."""
        return {"source": self.source, "sha256": self.sha256, "folder": self.folder}


LOADED: dict[str, Plugin] = {}  # by source, in the order of loading
_brought: dict[tuple[str, str], Plugin] = {}  # ("method" or "encoder", name) -> the plugin that was being loaded
_imported: dict[str, str] = {}  # module of a file -> hash of the file when it was imported
_failures: dict[str, str] = {}  # entry point -> why it could not be loaded
_looked_everywhere = False


# -- loading


def load(source: str) -> Plugin:
    """Load a plugin that the user named: FILE.py or a module. A file that changed since is loaded again."""
    path = Path(source)
    if not source.strip() or ":" in source:
        raise BadInput(f"A plugin is FILE.py or a module's name; got {printable(source)!r}.")
    is_file = path.suffix == ".py" or os.sep in source
    if is_file and not path.is_file():
        raise BadInput(f"There is no file {source} to load as a plugin.")
    place = str(path.absolute()) if is_file else source
    before = LOADED.get(place)
    if before is not None and (not is_file or before.sha256 == sha256_of(path)):
        return before
    found = _watched(place, lambda: import_file(path) if is_file else import_named(source))
    LOADED[place] = found
    return found


def load_all(sources: Iterable[str]) -> None:
    """Load several plugins, in their order."""
    for source in sources:
        load(source)


def load_sent(plain: Iterable[Mapping[str, str]]) -> None:
    """Load what the process that started this one had loaded; a file that is another one here is refused."""
    for one in plain:
        if one["folder"] and one["folder"] not in sys.path:
            sys.path.append(one["folder"])
        found = load(one["source"])
        if found.sha256 != one["sha256"]:
            raise BadInput(
                f"The plugin {one['source']} is not the same file here as where the command was given; put the same "
                "file at this path on every node."
            )


def to_send(method: str, encoder: str) -> list[dict[str, str]]:
    """What another process must load for a method and an encoder, with `load_sent`."""
    found: dict[str, Plugin] = {}
    for kind, name in (("method", method), ("encoder", encoder)):
        if TABLES[kind].is_own(name):
            continue
        plugin = _brought.get((kind, name)) or _imported_by_hand(TABLES[kind].declared[name])
        if not plugin.sha256:
            raise BadInput(
                f"The {kind} {name!r} is declared in no file, so that other processes cannot load it; put it into one."
            )
        found[plugin.source] = plugin
    return [plugin.plain() for plugin in found.values()]


def _imported_by_hand(declared: Any) -> Plugin:
    """Where a declaration comes from that the user imported: a module of a package, or a file."""
    file, module = source_of(declared), sys.modules.get(declared.__module__)
    if "." in declared.__module__ and module is not None and getattr(module, "__file__", None):
        return Plugin(module.__name__, sha256_of(Path(file)), "" if is_installed(file) else _folder_of(module))
    return Plugin(str(Path(file).absolute()), sha256_of(Path(file)))


def load_everything() -> None:
    """Load the plugins of DCPG_PLUGINS and of installed packages, once."""
    global _looked_everywhere  # noqa: PLW0603
    if _looked_everywhere:
        return
    load_all(filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)))
    for entry in entry_points(group=GROUP):
        if entry.value in LOADED:
            continue
        try:
            LOADED[entry.value] = _watched(entry.value.partition(":")[0], lambda entry=entry: _module_of(entry.load()))  # type: ignore[misc]
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # somebody else's package must not keep this one from working, or end it
            _failures[entry.name] = f"the plugin {entry.name} ({entry.value}) cannot be loaded: {short(error)}"
    _looked_everywhere = True


def _module_of(loaded: Any) -> ModuleType:
    return loaded if isinstance(loaded, ModuleType) else sys.modules[loaded.__module__]


def _watched(source: str, importing: Callable[[], ModuleType]) -> Plugin:
    """Import a plugin; what enters the tables meanwhile is its own."""
    before = {kind: dict(table) for kind, table in TABLES.items()}
    module = importing()
    file = getattr(module, "__file__", None)
    folder = "" if file is None or os.sep in source or is_installed(file) else _folder_of(module)
    plugin = Plugin(source, sha256_of(Path(file)) if file else "", folder)
    for kind, table in TABLES.items():
        for name, entry in table.items():
            if before[kind].get(name) is not entry:
                _brought[kind, name] = plugin
    return plugin


def import_file(path: Path) -> ModuleType:
    """Import a file by its path; modules beside it can be imported too. A failure is one sentence."""
    path = path.absolute()
    name, digest = f"dcpg_file_{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}", sha256_of(path)
    if name in sys.modules and _imported.get(name) == digest:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadInput(f"{path} is not a Python file.")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # dataclasses look up their module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise _unusable(str(path), error) from error
    _imported[name] = digest
    return module


def import_named(name: str) -> ModuleType:
    """Import a module that is installed or in the current folder. A failure is one sentence."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(name)
    except BaseException as error:
        raise _unusable(name, error) from error


def _unusable(what: str, error: BaseException) -> BaseException:
    """The sentence for code of the user's that fails while it is imported; an interrupt stays one."""
    if isinstance(error, BadInput | KeyboardInterrupt):
        return error
    return BadInput(f"{printable(what)} cannot be loaded: {short(error)}")


def is_installed(file: str) -> bool:
    """Whether a file belongs to an installed package, so that every process finds it by its module's name."""
    import sysconfig

    places = {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")}
    return any(Path(file).is_relative_to(place) for place in places if place)


def _folder_of(module: ModuleType) -> str:
    """The folder on Python's path in which a module was found."""
    up = len(module.__name__.split(".")) - (0 if hasattr(module, "__path__") else 1)
    return str(Path(str(module.__file__)).absolute().parents[up])


def sha256_of(file: Path) -> str:
    """The hash of a file; empty if there is none that can be read."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""


# -- finding


def find_method(name: str) -> Spec:
    """The method of this name; plugins are loaded if it is not one of the package's."""
    return _find("method", METHODS, name)


def find_encoder(name: str) -> type[Encoder]:
    """The encoder of this name; plugins are loaded if it is not one of the package's."""
    return _find("encoder", ENCODERS, name)


def _find(kind: str, table: Registry[T], name: str) -> T:
    if name not in table:
        load_everything()
    if name not in table:
        how = for_audience("--plugin FILE.py adds your own.", f"For your own, import the file with its @{kind} first.")
        broken = [f"{failure[0].upper()}{failure[1:]}." for failure in _failures.values()]
        raise BadInput(" ".join([str(unknown(kind, name, table)), how, *broken]))
    return table[name]


# -- what a run used


def used(method: str, encoder: str) -> list[dict[str, Any]]:
    """What config.json records of plugins: an entry for the method and one for the encoder, if they come from one."""
    found = []
    for kind, name in (("method", method), ("encoder", encoder)):
        if not TABLES[kind].is_own(name):
            plugin = _source(kind, name)
            found.append({"kind": kind, "name": name, "plugin": plugin.source, "sha256": plugin.sha256})
    return found


def parse_used(plain: Any) -> list[dict[str, Any]]:
    """What a config.json records of plugins, checked; BadInput for anything else."""
    found: list[Any] = plain if isinstance(plain, list) and len(plain) <= MOST_USED else [None]
    for one in found:
        if (
            not isinstance(one, dict)
            or one.get("kind") not in TABLES
            or not is_name(one.get("name"))
            or not all(isinstance(one.get(k), str) and len(one[k]) <= LONGEST_SOURCE for k in ("plugin", "sha256"))
        ):
            raise BadInput("plugins is not a list of what was declared outside of dcpg.")
    return [{key: one[key] for key in ("kind", "name", "plugin", "sha256")} for one in found]


def _source(kind: str, name: str) -> Plugin:
    """The plugin that brought a name, with a hash of its file as it was then, or the file of the declaration."""
    declared = TABLES[kind].declared[name]
    plugin, file = _brought.get((kind, name)), source_of(declared)
    if plugin is None:
        return Plugin(file, sha256_of(Path(file)))
    if Path(file) == Path(plugin.source) or plugin.source == declared.__module__:
        return plugin
    # the plugin imports the file with the declaration: both count
    return Plugin(plugin.source, hashlib.sha256(f"{plugin.sha256} {sha256_of(Path(file))}".encode()).hexdigest())


def changed(recorded: Iterable[Mapping[str, Any]]) -> list[str]:
    """A sentence for each recorded plugin whose file is not the one that a run used."""
    found = []
    for one in recorded:
        kind, name = one["kind"], one["name"]
        if name not in TABLES[kind]:
            continue
        if TABLES[kind].is_own(name) or _source(kind, name).sha256 != one["sha256"]:
            here = "this package" if TABLES[kind].is_own(name) else _source(kind, name).source
            found.append(
                f"the {kind} {name!r} is not the one that the run was made with: {here} differs from "
                f"{printable(one['plugin'])} as it was then"
            )
    return found


def missing(kind: str, name: str, recorded: Iterable[Mapping[str, Any]]) -> BadInput:
    """The error for a run's method or encoder that nobody has loaded; it names the file to give."""
    for one in recorded:
        if (one["kind"], one["name"]) == (kind, name):
            plugin = printable(one["plugin"])
            how = for_audience(f"give it with --plugin {plugin}", f"import that file first ({plugin})")
            return BadInput(f"its {kind} {name!r} is not part of dcpg; it was declared in {plugin}: {how}.")
    return unknown(kind, name, TABLES[kind])
