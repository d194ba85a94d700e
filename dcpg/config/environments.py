"""The user's own environments: from Python functions, files, modules and Gymnasium ids, and what a run records of one.

Code is imported only if the user named it. A run's config.json records where its environment came from, but the only
record that is used again is a Gymnasium id that is in the registry already.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from dcpg.config.identity import declaration, identity, without_folder
from dcpg.config.schema import OWN
from dcpg.core.registry import source_of
from dcpg.envs.adapter import GymnasiumEnv, close
from dcpg.envs.base import Spaces
from dcpg.errors import BadInput, DcpgError, short, unknown
from dcpg.methods.plugins import import_file, import_named, is_installed, sha256_of
from dcpg.text import LONGEST, LONGEST_SOURCE, counted, for_audience, is_name, option, printable

Ids = tuple[str, str | None]  # of an environment with training levels, and of the one with unseen levels
MakeEnv = Callable[..., Any]
"""A function (num_envs, seed) that returns a Gymnasium vector environment with that many environments.

With a third parameter `render_mode`, it is asked for "rgb_array" when a video is recorded.
"""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,63}")
MOST_CHANGES = 10_000  # of a run's environment that are recorded
MOST = 10**7  # the largest number that recorded spaces may contain


@dataclass(frozen=True)
class EnvMaker:
    """The user's own environment: how to make it, and where it comes from."""

    train: MakeEnv
    test: MakeEnv | None = None
    name: str = "env"
    id: str = ""  # where `train` comes from: a Gymnasium id, module:function or /path/FILE.py:function
    test_id: str | None = None
    given: tuple[str | None, str | None] = (None, None)  # as the user typed it; None: a Python object
    sha256: str = ""  # of the files in which the functions are written; empty: they are in none
    spaces: Spaces | None = None  # that it must have

    def make(self, split: str, n: int, seed: int, stack: int, render: bool = False) -> GymnasiumEnv:
        """n environments of training levels or of unseen ones, checked; `stack` is for the comparison of spaces."""
        test = self.test if split != "train" else None
        what, function, where = ("test_env", test, self.test_id) if test is not None else ("env", self.train, self.id)
        with _explained(f"{where} cannot be made"):
            env = _checked(function(n, seed, **_rendering(function, render)), what, n)
        try:
            with _explained(f"{where} cannot be reset"):
                made = GymnasiumEnv(env, seed)
            found = stacked(Spaces.of(made), stack)
            _check_recordable(found, where)
            if self.spaces is not None and found != self.spaces:
                raise BadInput(f"The agent was made for {self.spaces}; {where} has {found}.")
        except BadInput:
            close(env)
            raise
        return made

    def expecting(self, spaces: Spaces | None) -> EnvMaker:
        """The same, for an agent with these spaces."""
        return replace(self, spaces=spaces)

    def check_test(self, spaces: Spaces, seed: int, stack: int) -> None:
        """Refuse unseen levels with other spaces than the training levels have."""
        if self.test is not None:
            env = self.expecting(None).make("test", 2, seed, stack)
            env.close()
            found = stacked(Spaces.of(env), stack)
            if found != spaces:
                raise BadInput(f"The training levels have {spaces}; {self.test_id} has {found}.")

    @property
    def ids(self) -> Ids:
        return self.id, self.test_id

    @property
    def options(self) -> str:
        """How a command names this environment; empty if a command cannot."""
        if self.given[0] is None:
            return ""
        words = ["--env", self.given[0]]
        words += ["--test-env", self.given[1]] if self.given[1] is not None else []
        return " " + shlex.join(words)


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn a failure of the user's code into a sentence; its traceback stays the cause."""
    try:
        yield
    except BadInput:
        raise
    except (Exception, SystemExit) as error:
        raise BadInput(f"{what}: {error if isinstance(error, DcpgError) else short(error)}") from error


def stacked(spaces: Spaces, stack: int) -> Spaces:
    """The spaces of the same environment with so many frames in an observation."""
    return replace(spaces, shape=(*spaces.shape[:-1], spaces.shape[-1] * stack), stack=stack)


def _rendering(function: MakeEnv, render: bool) -> dict[str, str]:
    return {"render_mode": "rgb_array"} if render and "render_mode" in _parameters(function) else {}


def _parameters(function: MakeEnv) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _checked(env: Any, what: str, n: int) -> Any:
    """Refuse what is no vector environment, or one of another size."""
    if isinstance(env, gymnasium.Env):
        raise BadInput(
            f"{what}(num_envs, seed) returned a single environment; return gymnasium.vector.SyncVectorEnv([...]) with "
            "num_envs of them."
        )
    if not isinstance(env, gymnasium.vector.VectorEnv):
        raise BadInput(f"{what}(num_envs, seed) must return a Gymnasium vector environment; got {type(env).__name__}.")
    if env.num_envs != n:
        close(env)
        raise BadInput(f"{what}({n}, seed) returned {counted(env.num_envs, 'environment')} instead of {n}.")
    return env


# -- what the user names


def find(env: Any, test_env: Any = None, name: str | None = None) -> EnvMaker:
    """An environment from what the user gave: a function, or text such as CartPole-v1, FILE.py:make or module:make."""
    if env is None:
        raise BadInput(
            for_audience("--test-env goes with --env: give both.", "test_env= goes with env=: give both.")
            if test_env is not None
            else for_audience("--name goes with --env.", "name= goes with env=.")
        )
    train, own_name, id_ = _function(env, "env")
    test, test_id = None, None
    if test_env is not None:
        test, _, test_id = _function(test_env, "test_env")
    if name is not None and not NAME.fullmatch(name):
        raise BadInput(
            f"{option('name')} is {printable(name)!r}; an environment's name has letters, digits and . _ + = - , at "
            "most 64."
        )
    typed = tuple(one if isinstance(one, str) else None for one in (env, test_env))
    return EnvMaker(train, test, name or own_name, id_, test_id, (typed[0], typed[1]), _sources(train, test))


def _sources(*functions: MakeEnv | None) -> str:
    """A hash of the files in which functions are written; installed packages have versions instead."""
    files = dict.fromkeys(source_of(declaration(one)) for one in functions if one is not None)
    # of a Gymnasium id the function is in this file
    hashes = [sha256_of(Path(file)) for file in files if file != __file__ and not is_installed(file)]
    return hashlib.sha256(" ".join(hashes).encode()).hexdigest() if all(hashes) and hashes else ""


def _function(given: Any, what: str) -> tuple[MakeEnv, str, str]:
    """The function, its name and its id."""
    if isinstance(given, str):
        return _named(given)
    if isinstance(given, gymnasium.Env | gymnasium.vector.VectorEnv):
        raise BadInput(
            f"{what} is an environment that exists already; give a function (num_envs, seed) that makes one, because "
            "evaluations need new ones."
        )
    if isinstance(given, type) and issubclass(given, gymnasium.Env):
        raise BadInput(
            f"{what} is the class of a single environment; give a function (num_envs, seed) -> "
            "gymnasium.vector.VectorEnv, for example one with gymnasium.vector.SyncVectorEnv."
        )
    if not callable(given):
        raise BadInput(
            f"{what} must be a function (num_envs, seed) -> vector environment, or text such as 'CartPole-v1' or "
            f"'FILE.py:make'; got {type(given).__name__}."
        )
    _check_signature(given, what)
    return given, *identity(given)


def _check_signature(function: MakeEnv, what: str) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some built-in functions, which say it when they are called
        return
    try:
        signature.bind(1, 0)
    except TypeError:
        raise BadInput(f"{what} must take (num_envs, seed); {_shown(function)} takes {signature}.") from None


def _named(text: str) -> tuple[MakeEnv, str, str]:
    left, colon, right = text.rpartition(":")
    if colon and not (left.strip() and right.strip()):
        raise BadInput(
            f"An environment is an id such as CartPole-v1, FILE.py:FUNCTION or module:FUNCTION; got {text!r}."
        )
    if not colon:
        if text.endswith(".py"):
            raise BadInput(f"Name the function in {text} too, such as {text}:make.")
        return _gymnasium(text, text)
    is_file = left.endswith(".py") or os.sep in left
    if is_file and not Path(left).is_file():
        raise BadInput(f"There is no file {left} with an environment.")
    module = import_file(Path(left)) if is_file else import_named(left)
    found = getattr(module, right, None)
    if found is None and not is_file and right in gymnasium.registry:
        return _gymnasium(right, text)
    if not callable(found):
        raise BadInput(f"{left} has no function {right!r}; it has {', '.join(_functions(module)) or 'none'}.")
    return _function(found, text)


def _functions(module: ModuleType) -> list[str]:
    """Functions of a module that could make environments."""
    found = []
    for name, value in vars(module).items():
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_"):
            found.append(name)
    return found[:10]


def _gymnasium(name: str, given: str) -> tuple[MakeEnv, str, str]:
    """A registered environment, vectorised here."""
    if name not in gymnasium.registry:
        error = unknown("Gymnasium environment", name, gymnasium.registry)
        raise BadInput(f"{error} One of another package is named with its module: MODULE:{name}.")

    def make(num_envs: int, seed: int, render_mode: str | None = None) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        try:
            return gymnasium.make_vec(
                name,
                num_envs,
                vectorization_mode="sync",
                vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
                wrappers=[_flattened],  # type: ignore[list-item]  # it may also return the environment itself
                **({} if render_mode is None else {"render_mode": render_mode}),
            )
        except Exception as error:  # a package that is missing, for example
            raise BadInput(f"{name} cannot be made: {type(error).__name__}: {error}") from error

    return make, name.replace("/", "-"), given


def _flattened(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Flatten Discrete, Tuple and Dict observations into one vector."""
    space = env.observation_space
    try:
        flat = not isinstance(space, gymnasium.spaces.Box) and space.is_np_flattenable
    except NotImplementedError:  # of a space that Gymnasium does not know, such as MiniGrid's text
        flat = False
    return gymnasium.wrappers.FlattenObservation(env) if flat else env


def _shown(function: MakeEnv) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__).replace("<locals>.", "")


# -- what a run records


@dataclass(frozen=True)
class Environment:
    """What config.json records of the user's own environment."""

    name: str
    id: str
    test_id: str | None
    kind: str  # "gymnasium": an id that a registry may know; "code": the user's own code
    spaces: Spaces
    sha256: tuple[str, ...] = ()  # of its files: when the run began, and after every resume with changed ones
    later: tuple[Ids, ...] = ()  # other environments that the run was resumed with

    @classmethod
    def of(cls, maker: EnvMaker, spaces: Spaces) -> Environment:
        kind = "gymnasium" if maker.id in gymnasium.registry else "code"
        found = cls(maker.name, maker.id, maker.test_id, kind, spaces, (maker.sha256,) if maker.sha256 else ())
        cls.parse(found.plain())  # what is refused could not be read again
        return found

    def plain(self) -> dict[str, Any]:
        s = self.spaces
        spaces = {
            "shape": list(s.shape), "dtype": str(s.dtype), "actions": s.actions, "frame": list(s.frame),
            "first_action": s.first_action, "stack": s.stack,
        }  # fmt: skip
        named = {"name": self.name, "id": self.id, "test_id": self.test_id, "kind": self.kind}
        later = {"later": [list(ids) for ids in self.later]} if self.later else {}
        return {**named, "spaces": spaces, "sha256": list(self.sha256), **later}

    @property
    def ids(self) -> Ids:
        """Of the environment that the run was trained on last."""
        return self.later[-1] if self.later else (self.id, self.test_id)

    def training_alone(self) -> Environment:
        """The same without unseen levels; the hash of several files says nothing of one of them."""
        id_, test_id = self.ids
        is_one_file = test_id is None or test_id.rpartition(":")[0] == id_.rpartition(":")[0]
        later = tuple((one, None) for one, _ in self.later)
        return replace(self, test_id=None, later=later, sha256=self.sha256 if is_one_file else ())

    def is_same(self, maker: EnvMaker) -> bool:
        """Whether an environment is the one that the run was trained on last: of that place, or the same files."""
        return maker.ids == self.ids or (
            bool(self.sha256)
            and maker.sha256 == self.sha256[-1]
            and in_any_folder(maker.ids) == in_any_folder(self.ids)
        )

    def changed(self, maker: EnvMaker) -> bool:
        """Whether the files are others now, as far as they are known."""
        return bool(self.sha256 and maker.sha256) and maker.sha256 != self.sha256[-1]

    def resumed_with(self, maker: EnvMaker) -> Environment:
        """The same with what is new of an environment that the run goes on with; one that was moved has a new place."""
        is_new = maker.sha256 and maker.sha256 not in self.sha256[-1:]  # a run of an older release has none
        hashes = (*self.sha256, maker.sha256) if is_new else self.sha256
        if not self.is_same(maker):
            return replace(self, sha256=hashes, later=(*self.later, maker.ids))
        if self.later:
            return replace(self, sha256=hashes, later=(*self.later[:-1], maker.ids))
        return replace(self, sha256=hashes, id=maker.id, test_id=maker.test_id)

    def renamed(self, named: Callable[[str], str]) -> Environment:
        """The same with other ids."""

        def both(ids: Ids) -> Ids:
            return named(ids[0]), None if ids[1] is None else named(ids[1])

        (id_, test_id), later = both((self.id, self.test_id)), tuple(map(both, self.later))
        return replace(self, id=id_, test_id=test_id, later=later)

    @classmethod
    def parse(cls, plain: Any) -> Environment:
        """From the data of a config.json; BadInput for anything else."""
        try:
            s = plain["spaces"]
            dtype = np.dtype(s["dtype"]) if isinstance(s["dtype"], str) else None
            spaces = Spaces(_shape(s["shape"]), dtype, _count(s["actions"]), _shape(s["frame"]),  # type: ignore[arg-type]
                            _count(s["first_action"], low=-MOST), _count(s["stack"], low=1))  # fmt: skip
            name, id_, test, kind = (plain[key] for key in ("name", "id", "test_id", "kind"))
            if dtype is None or dtype.kind not in "uifb" or spaces.actions < 2 or spaces.shape[-1] % spaces.stack:
                raise ValueError("its spaces are impossible")
            if not (is_name(name) and is_name(kind)):
                raise ValueError(f"a name is no text of at most {LONGEST} whole characters")
            later = [(one, other) for one, other in plain.get("later", [])]
            ids = [one for pair in ((id_, test), *later) for one in (pair[0], "" if pair[1] is None else pair[1])]
            if not all(isinstance(text, str) and len(text) <= LONGEST_SOURCE for text in ids):
                raise ValueError(f"an id is no text of at most {LONGEST_SOURCE:,} characters")
            hashes = plain.get("sha256", [])  # runs of older releases have none
            if not isinstance(hashes, list) or not all(is_name(one) for one in hashes):
                raise ValueError("its hashes are no list of text")
            if max(len(hashes), len(later)) > MOST_CHANGES:
                raise ValueError(f"it was changed more than {MOST_CHANGES:,} times")
            return cls(name, id_, test, kind, spaces, tuple(hashes), tuple(later))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise BadInput(f"environment is not what a run records of one ({printable(error)}).") from None


def in_any_folder(ids: Ids) -> Ids:
    """The ids without the folders of files."""
    return without_folder(ids[0]), None if ids[1] is None else without_folder(ids[1])


def _check_recordable(spaces: Spaces, where: str | None) -> None:
    """Refuse spaces that a config.json could not be read with: the run could not be resumed."""
    try:
        Environment.parse(Environment("", "", None, "code", spaces).plain())
    except BadInput:
        raise BadInput(f"{where} has {spaces}; observations may have 8 axes and {MOST:,} numbers at most.") from None


def _shape(given: Any) -> tuple[int, ...]:
    if not isinstance(given, list) or not 1 <= len(given) <= 8:
        raise ValueError("a shape is no list of numbers")
    shape = tuple(_count(n, low=1) for n in given)
    if int(np.prod(shape, dtype=object)) > MOST:
        raise ValueError("an observation is too large")
    return shape


def _count(given: Any, low: int = 0) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not low <= given <= MOST:
        raise ValueError(f"{given!r} is no such number")
    return given


def maker_for(game: str, recorded: Environment | None, env: Any, test_env: Any, call: str) -> EnvMaker | None:
    """The environment of a run: what the user gives, or a recorded Gymnasium id that is registered already.

    None for Procgen. `call` is the command that needs it, such as "resume runs/mine", for the message.
    """
    if not game.startswith(OWN):
        if env is not None or test_env is not None:
            raise BadInput(f"This run plays Procgen's {game}; leave {option('env')} out.")
        return None
    spaces = recorded.spaces if recorded is not None else None
    if env is not None:
        return replace(find(env, test_env), name=game.removeprefix(OWN), spaces=spaces)
    id_, test_id = recorded.ids if recorded is not None else ("", None)
    if recorded is not None and (recorded.kind == "gymnasium" or recorded.later) and id_ in gymnasium.registry:
        test = test_env if test_env is not None else test_id
        if test is not None and test_env is None and test not in gymnasium.registry:
            raise _needed(game, recorded, call)
        return replace(find(id_, test), name=game.removeprefix(OWN), spaces=spaces)
    raise _needed(game, recorded, call)


def can_be_typed(id_: str) -> bool:
    """Whether `--env` accepts this id. Lambdas, closures and partial functions cannot be typed."""
    return re.fullmatch(r"[^:()]+(:[A-Za-z_][A-Za-z0-9_]*)?", id_) is not None


def _needed(game: str, recorded: Environment | None, call: str) -> BadInput:
    """The sentence for an environment that the user must name, because nothing is imported from a run's files."""
    *verb, directory = call.split(" ", 1) if not call.startswith("analyse ") else call.split(" ", 2)
    ids = [id_ for id_ in recorded.ids if id_ is not None] if recorded is not None else []
    where = f" ({printable(ids[0])})" if ids else ""
    words = [word for pair in zip(("--env", "--test-env"), map(printable, ids), strict=False) for word in pair]
    tests = ", test_env=..." if len(ids) > 1 else ""
    name = {"eval": "evaluate"}.get(verb[0], verb[0])
    python = f'dcpg.{name}("{directory}"{"".join(f", {word!r}" for word in verb[1:])}, env=...{tests})'
    command = f"dcpg {' '.join(verb)} {directory} {shlex.join(words or ['--env', 'FILE.py:make'])}"
    if not all(can_be_typed(id_) for id_ in ids):  # a lambda, for example
        command = f"dcpg {' '.join(verb)} {directory} --env FILE.py:NAME, or from Python, {python}"
    return BadInput(
        f"{directory} was trained on an environment of your own, {printable(game.removeprefix(OWN))}{where}; name it "
        f"again: {for_audience(command, python)}"
    )
