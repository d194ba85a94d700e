"""Injects faults into the runs of a sweep. Python imports this module before anything else if it is on PYTHONPATH.

DCPG_SWEEP_FAULTS names a folder with one JSON file per run: for each attempt the faults of tests/faults/inject.py. The
last ones apply to all later attempts.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

if sys.orig_argv[-2:] == ["-m", "dcpg.sweep.child"] and "DCPG_SWEEP_FAULTS" in os.environ:
    import json

    from dcpg.training import start as launch
    from tests.faults import inject

    def with_faults(run: Any, place: int) -> Any:
        def wrapped(*args: Any, **named: Any) -> Any:
            name = Path(args[place]).name
            folder = Path(os.environ["DCPG_SWEEP_FAULTS"])
            with open(folder / f"{name}.attempts", "a") as file:
                file.write(f"{os.getpid()}\n")
            attempt = len((folder / f"{name}.attempts").read_text().splitlines())
            faults = json.loads((folder / f"{name}.json").read_text()) if (folder / f"{name}.json").exists() else [""]
            inject.install(["untried", "+", *faults[min(attempt, len(faults)) - 1].split()])
            return run(*args, **named)

        return wrapped

    launch.start, launch.resume = with_faults(launch.start, 1), with_faults(launch.resume, 0)
