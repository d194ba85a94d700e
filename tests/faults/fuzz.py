"""Runs and sweeps that were changed at random, as strategies of hypothesis.

A case is a list of mutations of one small real run. A mutation changes a place in a file of JSON, a safetensors header,
a row or a sweep's file, or puts something else where a file was; hashes are made right again, as somebody who means
harm would do.
"""

from __future__ import annotations

import copy as copying
import itertools
import json
import os
import shutil
import stat
import struct
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dcpg.config.written import fingerprint
from dcpg.storage import checkpoint
from tests.faults import driver
from tests.faults.driver import Driver, Ended, newest

PATIENCE = 20.0  # seconds for a command that takes one
MEMORY = 2**21  # KiB; the interpreter has a third of that
REFUSALS = (2, 3, 4, 6)
STOPPED = 75  # a resume that trains is stopped soon: how long a run takes is for its settings to say
SOON = ("at policy 40 SIGTERM", "at auxiliary 40 SIGTERM", "at collect 200 SIGTERM")
SCALE = float(os.environ.get("DCPG_FUZZ", "1"))  # times as many examples
DRAWN = 8  # times as many examples are drawn, for enough that differ
FIFO, DEVICE = "fifo", "device"
Path_ = tuple[str | int, ...]


def seeded(examples: int) -> settings:
    """The same examples every time; all failures are told, so none is made smaller."""
    return settings(
        max_examples=max(int(examples * SCALE), 1),
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )


# -- values

RAW = {  # text that json.dumps cannot write, for a mark in its place
    "@deep lists@": "[" * 100_000 + "]" * 100_000,
    "@deep tables@": '{"a":' * 5_000 + "1" + "}" * 5_000,
    "@5000 digits@": "1" + "0" * 5_000,
    "@twice@": '{"steps": 1, "steps": 2}',
}
NUMBERS = (
    0, -1, 1, 2, 3, 7, 255, 256, 1e-9, 0.5, 1.5, -0.0, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**62, 2**63 - 1,
    2**63, -(2**63), 2**64, 10**6, 10**9, 10**12, 10**18, 10**30, 10**400, -(10**400), 1e100, 1e308, -1e308, 5e-324,
    float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
TEXTS = (
    "", "x", "1", "0.5", "nan", "true", "null", "\0", "\x1b[2J\x1b]0;title\x07", "\ud800", "\u202e", "ü" * 300,
    "a" * 100_000, "../../outside/victim", "/etc/passwd", "/dev/zero", "~root", "-rf", "--help", "$(touch sang)",
    "canary.py", "canary.py:make", "canary:make", "<script>alert(1)</script>", "[a](javascript:alert(1))",
    r"$\frac{1}{$", "$x_", "%s%n", "{}", "{0.__class__}", "cuda", "cuda:99", "meta", "bf16", "auto", "own:maze",
    "coinrun", "ppo", "dcpg", "rnn", "torch.load", "os:system",
)  # fmt: skip
SHAPES: tuple[Any, ...] = (
    None, True, False, [], {}, [[]], [None], [{}], [0] * 70_000, [1e308, 1e308], {"a": 1}, {"": None}, ["x"],
    [[1], [2]], {"a": {"b": {"c": []}}}, *RAW,
)  # fmt: skip
strange = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from(TEXTS),
    st.sampled_from(SHAPES),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
)


def encode(value: Any) -> bytes:
    """JSON with what JSON should not hold."""
    text = json.dumps(value)
    for mark, raw in RAW.items():
        text = text.replace(json.dumps(mark), raw)
    return text.encode("utf-8", "surrogatepass")


def paths(value: Any, here: Path_ = ()) -> Iterable[Path_]:
    """Every place in a tree of lists and tables; of a long list some entries."""
    yield here
    if isinstance(value, dict):
        for key, one in value.items():
            yield from paths(one, (*here, key))
    elif isinstance(value, list):
        for i in {0, 1, len(value) - 1} & set(range(len(value))):
            yield from paths(value[i], (*here, i))


@st.composite
def changes(draw: Any, tree: Any, most: int = 2) -> list[tuple[Path_, str, Any]]:
    """Some changes of a tree: another value, a key that is missing, one too many, an entry twice."""
    everywhere = sorted(paths(tree), key=str)
    found = []
    for _ in range(draw(st.integers(1, most))):
        where = draw(st.sampled_from(everywhere))
        how = draw(st.sampled_from(("value", "value", "value", "value", "missing", "extra", "twice", "wrapped")))
        found.append((where, how, draw(strange) if how in ("value", "extra") else None))
    return found


def changed(tree: Any, made: list[tuple[Path_, str, Any]]) -> Any:
    """A copy of a tree with these changes; one whose place is gone is left out."""
    tree = copying.deepcopy(tree)
    for where, how, value in made:
        value = copying.deepcopy(value)  # a later change may be inside it
        if not where:
            tree = {"value": value, "extra": [tree, value], "wrapped": [tree], "missing": None}.get(how, tree)
            continue
        try:
            parent = tree
            for key in where[:-1]:
                parent = parent[key]
            old = parent[where[-1]]
            if how == "value":
                parent[where[-1]] = value
            elif how == "missing":
                del parent[where[-1]]
            elif how == "wrapped":
                parent[where[-1]] = [old]
            elif isinstance(old, dict):
                old["extra" if how == "twice" else str(value)[:50]] = value
            elif isinstance(old, list):
                old.append(value if how == "extra" else copying.deepcopy(old[-1]) if old else value)
            else:
                parent[where[-1]] = [old, value]
        except (KeyError, IndexError, TypeError, AttributeError):
            continue
    return tree


def short(made: Any) -> str:
    text = str(made)
    return text if len(text) < 200 else f"{text[:150]}... ({len(text)} characters)"


# -- what can be changed in a run


@dataclass(frozen=True)
class Mutation:
    """A change of a run; `apply` is given its directory."""

    says: str
    apply: Callable[[Path], None]


def of_json(run: Path, file: str, seal: Callable[[Path, Any], None] | None = None) -> st.SearchStrategy[Mutation]:
    """Changes of a small JSON file; `seal` makes right what names it."""
    good = json.loads((run / file).read_bytes())

    def mutation(made: Any) -> Mutation:
        def apply(out: Path) -> None:
            bad = changed(good, made)
            (out / file).write_bytes(encode(bad))
            if seal is not None:
                seal(out, bad)

        return Mutation(f"{file} {short(made)}", apply)

    return changes(good).map(mutation)


def of_config(run: Path, sealed: bool) -> st.SearchStrategy[Mutation]:
    """Changes of config.json; sealed: the checkpoints name the hash of the changed one."""

    def seal(out: Path, bad: Any) -> None:
        try:
            found = fingerprint(json.loads(encode(bad)))
        except Exception:
            return
        for name in driver.names(out):
            driver.rewrite(out / "checkpoints" / name, "", b"", config=found)

    return of_json(run, "config.json", seal if sealed else None)


def of_manifest(run: Path) -> st.SearchStrategy[Mutation]:
    """Changes of a manifest, with the hash of what was there or of what is there now."""
    file = f"checkpoints/{newest(run).name}/manifest.json"

    def seal(out: Path, bad: Any) -> None:
        if isinstance(bad, dict) and "sha256" in bad:
            (out / file).write_bytes(checkpoint.seal(encode(bad | {"sha256": checkpoint.UNSEALED})))

    return of_json(run, file, seal) | of_json(run, file)


def named(out: Path, key: str, data: bytes) -> None:
    """Replace a checkpoint's file, with the right hash in every manifest that names it."""
    for name in driver.names(out) if key.startswith("shared/") else [newest(out).name]:
        checkpoint = out / "checkpoints" / name
        if key in json.loads((checkpoint / "manifest.json").read_bytes())["files"]:
            driver.rewrite(checkpoint, key, data)


def of_state(run: Path) -> st.SearchStrategy[Mutation]:
    good = json.loads((newest(run) / "state.json").read_bytes())
    return changes(good).map(
        lambda made: Mutation(
            f"state.json {short(made)}", lambda out: named(out, "state.json", encode(changed(good, made)))
        )
    )


def of_memory(run: Path) -> st.SearchStrategy[Mutation]:
    """The JSON in collector.zst, and the lengths of its parts."""
    first, *rest = driver._collector(newest(run))
    good = json.loads(first)
    lengths = [len(rest) + 1, len(first), *map(len, rest)]

    def packed(table: list[int], parts: list[bytes]) -> bytes:
        numbers = [max(min(n, 2**63 - 1), -(2**63)) if isinstance(n, int) else 0 for n in table]
        return zstandard.ZstdCompressor().compress(struct.pack(f"<{len(numbers)}q", *numbers) + b"".join(parts))

    def memory(made: Any) -> Mutation:
        def apply(out: Path) -> None:
            head = encode(changed(good, made))
            named(out, "collector.zst", packed([lengths[0], len(head), *lengths[2:]], [head, *rest]))

        return Mutation(f"collector.zst {short(made)}", apply)

    def table(made: Any) -> Mutation:
        def apply(out: Path) -> None:
            bad = changed(lengths, made)
            named(out, "collector.zst", packed(bad if isinstance(bad, list) else [], [first, *rest]))

        return Mutation(f"lengths in collector.zst {short(made)}", apply)

    return st.one_of(changes(good).map(memory), changes(lengths).map(table))


def of_tensors(run: Path, file: str) -> st.SearchStrategy[Mutation]:
    """Changes of a safetensors header, and of bytes behind it."""
    data = (run / file).read_bytes()
    length = struct.unpack_from("<Q", data)[0]
    good, body = json.loads(data[8 : 8 + length]), data[8 + length :]

    def write(out: Path, bad: bytes) -> None:
        if file.startswith("checkpoints/"):
            key = file.removeprefix("checkpoints/")
            named(out, key if key.startswith("shared/") else Path(key).name, bad)
        else:
            (out / file).write_bytes(bad)

    def header(made: Any, size: int | None) -> Mutation:
        def apply(out: Path) -> None:
            text = encode(changed(good, made))
            write(out, struct.pack("<Q", len(text) if size is None else size) + text + body)

        return Mutation(f"header of {Path(file).name} {short(made)}, size {size}", apply)

    def contents(words: list[tuple[int, int]]) -> Mutation:
        def apply(out: Path) -> None:
            bad = bytearray(body)
            for place, word in words:
                at = place % max(len(bad) - 8, 1)
                bad[at : at + 4] = struct.pack("<I", word)
            write(out, data[: 8 + length] + bytes(bad[: len(body)]))

        return Mutation(f"contents of {Path(file).name} {words}", apply)

    words = st.sampled_from((0, 0xFFFFFFFF, 0x7F800000, 0x7FC00000, 0x7F7FFFFF, 0x80000000, 1))
    return st.one_of(
        st.builds(header, changes(good), st.sampled_from((None, None, None, 0, 7, 2**40, 2**63, 2**64 - 1))),
        st.lists(st.tuples(st.integers(0, 2**20), words), min_size=1, max_size=4).map(contents),
    )


def of_rows(run: Path, file: str) -> st.SearchStrategy[Mutation]:
    """Changes of one row, of all rows, or of their number."""
    rows = [json.loads(line) for line in (run / file).read_bytes().splitlines()]

    def row(number: int, made: Any) -> Mutation:
        def apply(out: Path) -> None:
            bad = [changed(one, made) if i == number or number == len(rows) else one for i, one in enumerate(rows)]
            (out / file).write_bytes(b"".join(encode(one) + b"\n" for one in bad))

        return Mutation(f"{file} row {number} of {len(rows)} {short(made)}", apply)

    def text(before: bytes, after: bytes) -> Mutation:
        def apply(out: Path) -> None:
            (out / file).write_bytes(before + (run / file).read_bytes() + after)

        return Mutation(f"{file} between {before[:9]!r} and {after[:9]!r}", apply)

    odd = st.sampled_from(
        (b"", b"{}\n", b"[]\n", b"\n", b"null\n", b"\0" * 64, b"\xff\n", b"[" * 100_000 + b"\n", b"{}")
    )
    whole = changes(rows[-1], 1)
    return st.one_of(st.builds(row, st.integers(0, len(rows)), whole), st.builds(text, odd, odd))


KINDS = (
    "link",
    "link",
    "link to nowhere",
    "link to itself",
    FIFO,
    DEVICE,
    "endless",
    "folder",
    "file",
    "empty",
    "sparse",
)


def of_kind(run: Path, written: Iterable[str] = ()) -> st.SearchStrategy[Mutation]:
    """Something else in place of any file or folder of the run; links in place of what it writes, more often."""
    there = [str(p.relative_to(run)) for p in sorted(run.rglob("*"))]
    anything = st.builds(in_place, st.sampled_from([*there, *written]), st.sampled_from(KINDS))
    links = [st.builds(in_place, st.sampled_from(list(written)), st.just("link"))] if written else []
    return st.one_of(anything, *links)


def in_place(file: str, kind: str) -> Mutation:
    """Put a link, a pipe, a device or a huge file in place of one."""

    def apply(out: Path) -> None:
        at, outside = out / file, out.parent / "outside"
        if not at.parent.is_dir() or at.parent.is_symlink():
            return
        aside = outside / "moved"
        if at.is_dir() and not at.is_symlink():
            if kind == "link" and not aside.exists():
                shutil.copytree(at, aside)
            shutil.rmtree(at)
        else:
            if kind == "link" and at.is_file() and not aside.exists():
                shutil.copy(at, aside)
            at.unlink(missing_ok=True)
        make(at, kind, aside if aside.exists() else outside / "victim")

    return Mutation(f"{kind} at {file}", apply)


def make(at: Path, kind: str, target: Path) -> None:
    if kind == "link":
        at.symlink_to(target)
    elif kind == "link to nowhere":
        at.symlink_to(target.parent / "nothing")
    elif kind == "link to itself":
        at.symlink_to(at.name)
    elif kind == FIFO:
        os.mkfifo(at)
    elif kind == DEVICE:
        try:
            os.mknod(at, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero
        except OSError:
            at.symlink_to("/dev/zero")
    elif kind == "endless":
        at.symlink_to("/dev/zero")
    elif kind == "folder":
        (at / "of").mkdir(parents=True)
        (at / "of" / "somebody").write_text("else")
    elif kind == "file":
        at.write_text("something else\n")
    elif kind == "empty":
        at.touch()
    else:
        with open(at, "wb") as file:
            file.truncate(3 * 2**30)


def alone(out: Path) -> None:
    """Leave the newest checkpoint: there is none to go back to."""
    driver.only(out, newest(out).name)


ALONE = Mutation("with one checkpoint", alone)


def cases(*kinds: st.SearchStrategy[Mutation]) -> st.SearchStrategy[list[Mutation]]:
    """One mutation or two, with the older checkpoints or without."""
    some = st.lists(st.one_of(*kinds), min_size=1, max_size=2)
    return st.tuples(some, st.booleans()).map(lambda case: [*([ALONE] if case[1] else []), *case[0]])


# -- what must hold


@dataclass(frozen=True)
class Verdict:
    """What was wrong with the end of a command; empty: nothing."""

    case: str
    command: str
    wrong: str
    text: str

    def __str__(self) -> str:
        return f"- `{self.command}`: {self.wrong}\n  {self.case}\n  {self.text}"

    @property
    def signature(self) -> tuple[str, str, str]:
        """Failures of one cause: the command, and where it stood."""
        place = [line.strip() for line in self.text.splitlines() if line.strip().startswith('File "')]
        return self.command, self.wrong, place[-1] if place else ""


def wrong_with(ended: Ended) -> str:
    """Why the end of a command is none that is promised, or nothing."""
    if ended.code == -9:
        return "killed: it hung, or took all memory"
    if "Traceback" in ended.err:
        return "traceback"
    if ended.code not in (0, STOPPED, *REFUSALS):
        return f"exit {ended.code}"
    if ended.peak > MEMORY:
        return f"took {ended.peak >> 10} MiB"
    if ended.code in REFUSALS and not [
        line for line in ended.err.splitlines() if line.startswith(("dcpg: ", "Usage: "))
    ]:
        return f"exit {ended.code} without a sentence"
    if any(c < " " and c not in "\n\t\r" for c in ended.out + ended.err):
        return "control characters on the terminal"
    return ""


class Field:
    """A folder in which cases are tried: the run, what lies outside of it and must not change, and a canary."""

    def __init__(self, runs: Driver, folder: Path, source: Path) -> None:
        self.runs, self.folder, self.source = runs, folder, source
        self.found: list[Verdict] = []
        self.tried = self.bad = 0
        self.numbers, self.lock = itertools.count(), threading.Lock()

    def explore(self, fault: str, examples: int, case: st.SearchStrategy[list[Mutation]], commands: Any) -> None:
        """Try so many cases with so many commands, a few at a time, and tell all that is wrong with any of them."""
        drawn: list[tuple[list[Mutation], list[list[str]]]] = []
        seen: set[str] = set()

        @seeded(DRAWN * examples)
        @given(case, commands)
        def draw(mutations: list[Mutation], words: list[list[str]]) -> None:
            new = {one.says for one in mutations} - seen
            if new and len(drawn) < examples * SCALE:  # hypothesis repeats itself on purpose
                seen.update(new)
                drawn.append((mutations, words))

        draw()
        with ThreadPoolExecutor(driver.WORKERS) as pool:
            list(pool.map(lambda one: self.try_case(*one), drawn))
        self.conclude(fault)

    def try_case(self, case: list[Mutation], commands: Iterable[list[str]]) -> None:
        """Every command on a copy of the source with these mutations; RUN, OUT and OUTSIDE stand for directories."""
        place = self.folder / f"case-{next(self.numbers)}"
        outside, out = place / "outside", place / "run"
        outside.mkdir(parents=True)
        (outside / "victim").write_text("untouched\n")
        # commands start in this folder: code that a file names would be found, and leave a file
        sings = f"open({str(outside / 'sang')!r}, 'w')\ndef make(*a, **k): raise SystemExit\n"
        (outside / "canary.py").write_text(sings)
        shutil.copytree(self.source, out, symlinks=True)
        says = "; ".join(one.says for one in case)
        for one in case:
            one.apply(out)
        before = driver.listing(outside)
        names = {"OUTSIDE": str(outside), "OUT": str(place / "made"), "RUN": str(out)}
        for words in commands:
            shutil.rmtree(place / "made", ignore_errors=True)
            filled = words
            for name, path in names.items():
                filled = [word.replace(name, path) for word in filled]
            faults = ("bounded", *(SOON if words[0] == "resume" else ()))
            ended = self.runs.start(filled, *faults, cwd=outside).killed_after(PATIENCE)
            wrong = wrong_with(ended)
            after = driver.listing(outside)
            if not wrong and after != before:
                wrong = "changed something outside of the run"
            before = after
            self.note(Verdict(says, " ".join(words), wrong, ended.err[-1500:]))
        shutil.rmtree(place, ignore_errors=True)

    def note(self, one: Verdict) -> None:
        """Count an end, and keep it if something is wrong; the first of a cause also goes to the file DCPG_FUZZ_OUT."""
        with self.lock:
            self.tried += 1
            if not one.wrong:
                return
            self.bad += 1
            new = one.signature not in {other.signature for other in self.found}
            self.found.append(one)
            if new and "DCPG_FUZZ_OUT" in os.environ:
                with open(os.environ["DCPG_FUZZ_OUT"], "a") as file:
                    file.write(f"{one}\n")

    def conclude(self, fault: str) -> None:
        """Count, and tell one failure of every cause."""
        driver.record(fault, self.tried, self.tried - self.bad)
        causes: dict[tuple[str, str, str], list[Verdict]] = {}
        for one in self.found:
            causes.setdefault(one.signature, []).append(one)
        listed = "\n".join(f"{len(same)} x {same[0]}" for same in causes.values())
        assert not causes, f"{self.bad} of {self.tried} commands on changed runs:\n{listed}"
