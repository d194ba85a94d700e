"""Where an analysis is kept, for people and for the report."""

from __future__ import annotations

import io
from typing import Any

from dcpg.analysis.pictures import PICTURES
from dcpg.config import Config
from dcpg.errors import StorageFailed
from dcpg.rundir import RunDirectory, dump, write_atomic


def keep(run: RunDirectory, config: Config, result: dict[str, Any], name: str) -> None:
    """DIR/analysis/NAME.json and NAME.png; of weights on the way, NAME has their steps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = PICTURES[result["analysis"]](result, config)
    title = f"{config.method} on {config.game}, seed {config.seed}"
    figure.suptitle(title, fontsize=9, x=0.01, ha="left", parse_math=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    plt.close(figure)
    folder = run.path / "analysis"
    try:
        folder.mkdir(exist_ok=True)
        write_atomic(folder / f"{name}.json", dump(result))
        write_atomic(folder / f"{name}.png", picture.getvalue())
    except OSError as error:
        raise StorageFailed(f"{folder} cannot be written to ({error}).") from None
