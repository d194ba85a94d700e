"""The page: a single file with its data, its chart library and its styles inside."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import time
import unicodedata
from functools import cache
from importlib import resources
from typing import Any


def page(data: dict[str, Any]) -> str:
    """The page as HTML."""
    made = {"made": time.strftime("%Y-%m-%d %H:%M", time.localtime()), "version": version_of(data)}
    parts = {
        "STYLE": asset("page.css"),
        "PLOTLY": chart_library(),
        "SCRIPT": asset("page.js"),
        "DATA": as_script(data),
        "MADE": json.dumps(made),
    }
    pieces = asset("page.html").split("{{")
    found = [pieces[0]]
    for piece in pieces[1:]:
        name, rest = piece.split("}}", 1)
        found += [parts[name], rest]
    return "".join(found)


def as_script(data: dict[str, Any]) -> str:
    """The data as JSON inside an element of the page.

    A closing tag would end that element, so none is left. Characters that are not seen but turn the text around them,
    or control something, are shown by their numbers.
    """
    plain = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    return re.sub(r"\\(?:u([0-9a-f]{4})|.)", _seen, plain)


def _seen(escape: re.Match[str]) -> str:
    code = escape[1]
    unseen = code is not None and unicodedata.category(chr(int(code, 16))) in ("Cc", "Cf")
    return f"\\\\u{code}" if unseen else escape[0]


@cache
def chart_library() -> str:
    """plotly's library, compressed and then base64: two fifths of its size. The page opens it."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode()


def version_of(data: dict[str, Any]) -> str:
    """A hash that changes whenever the page would show something else."""
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]


def asset(name: str) -> str:
    """A file of the package that is a part of the page."""
    return (resources.files("dcpg.report") / "assets" / name).read_text(encoding="utf-8")
