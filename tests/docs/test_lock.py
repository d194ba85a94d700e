"""requirements.lock: pinned, hashed, from anywhere, and what pyproject.toml asks for."""

from __future__ import annotations

import re
import tomllib

from packaging.requirements import Requirement

from tests.docs.pages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PLACES = [  # where it is to be installed: (Python, machine, system)
    (python, machine, system)
    for python in ("3.11", "3.12", "3.13")
    for machine, system in (("x86_64", "linux"), ("aarch64", "linux"), ("arm64", "darwin"))
]


def entries() -> list[tuple[Requirement, list[str]]]:
    """(requirement, its hashes) of every entry."""
    text = (ROOT / "requirements.lock").read_text().replace("\\\n", " ")
    found = []
    for line in text.splitlines():
        if not line.startswith("#"):
            requirement, *hashes = line.split("--hash=")
            found.append((Requirement(requirement.strip()), [h.strip() for h in hashes]))
    return found


def applies(requirement: Requirement, place: tuple[str, str, str]) -> bool:
    python, machine, system = place
    names = {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine}
    return requirement.marker is None or requirement.marker.evaluate(names | {"sys_platform": system, "extra": ""})


def wanted() -> list[Requirement]:
    """What `dcpg[all]` asks for."""
    extras = PROJECT["optional-dependencies"]
    (everything,) = map(Requirement, extras["all"])
    return [Requirement(r) for r in [*PROJECT["dependencies"], *(r for e in everything.extras for r in extras[e])]]


def test_every_entry_is_one_version_with_hashes_and_no_place() -> None:
    for requirement, hashes in entries():
        assert re.fullmatch(r"==[^+*,]+", str(requirement.specifier)), requirement  # no local build such as +cpu
        assert requirement.url is None
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes), requirement
    text = (ROOT / "requirements.lock").read_text()
    assert not re.search(r"://|--(?!hash=|require-hashes)|(^|\s)[./]\S*/", text)


def test_it_has_what_the_project_asks_for_everywhere() -> None:
    for place in PLACES:
        pinned = {r.name.lower(): str(r.specifier)[2:] for r, _ in entries() if applies(r, place)}
        for requirement in wanted():
            if applies(requirement, place):
                assert requirement.specifier.contains(pinned[requirement.name.lower()]), (requirement, place)
        assert len(pinned) == sum(applies(r, place) for r, _ in entries()), place  # one version of each package


def test_it_has_the_versions_that_the_tests_ran_with() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    constraints = [Requirement(line) for line in lines if not line.startswith("#")]
    for place in PLACES:
        pinned = {r.name.lower(): r.specifier for r, _ in entries() if applies(r, place)}
        for constraint in constraints:
            name = constraint.name.lower()
            if name in pinned and applies(constraint, place):
                assert pinned[name] == constraint.specifier, (constraint, place)
