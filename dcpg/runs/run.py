"""A run on disk as Python sees it: its summary, its rows as tables, its pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dcpg.errors import BadInput
from dcpg.storage.files import Unreadable, read_json
from dcpg.storage.rows import Evaluation, Metrics, Row, read
from dcpg.storage.rundir import RunDirectory

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

MOST_SUMMARY = 64_000_000  # bytes


class RunFiles:
    """A run's directory. Everything is read from its files when it is asked for, also while the run trains."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.directory)!r})"

    @property
    def summary(self) -> dict[str, Any]:
        """What summary.json says: method, game, seed, steps, status, and the returns of the last evaluation."""
        path = RunDirectory(self.directory).summary
        try:
            found = read_json(path, MOST_SUMMARY)
            if not isinstance(found, dict):
                raise Unreadable("it is not a table")
        except (OSError, Unreadable) as error:
            raise BadInput(f"{path} cannot be read ({error}).") from None
        return found

    def metrics(self) -> pd.DataFrame | NDArray[Any]:
        """One row per rollout: finished episodes, every term unscaled and scaled, gradient norms.

        Returns:
            A pandas table, or a structured NumPy array if pandas is not installed: `table["steps"]` works with both.
            Columns that only some rows have are NaN in the others.
        """
        return _table(read(RunDirectory(self.directory).metrics.path, Metrics))

    def evaluations(self) -> pd.DataFrame | NDArray[Any]:
        """One row per evaluation: returns and levels on training and unseen levels, predicted and true values.

        Returns:
            A pandas table, or a structured NumPy array if pandas is not installed; columns such as `test_return`.
        """
        return _table(read(RunDirectory(self.directory).evaluations.path, Evaluation))

    def curves(self) -> Path:
        """Draw returns and values over training to `curves.png` in the run's directory; returns its path."""
        from dcpg.runs.curves import curves

        return curves(RunDirectory(self.directory))


def _table(rows: list[Any]) -> Any:
    plain: list[dict[str, Any]] = [row.plain() for row in rows if isinstance(row, Row)]
    columns = {
        name: _column([row.get(name) for row in plain]) for name in dict.fromkeys(k for row in plain for k in row)
    }
    try:
        import pandas as pd
    except ImportError:
        found = np.empty(len(plain), [(name, column.dtype) for name, column in columns.items()])
        for name, column in columns.items():
            found[name] = column
        return found
    return pd.DataFrame(columns)


def _column(values: list[Any]) -> NDArray[Any]:
    """Numbers as such, with NaN where a row has none; lists and texts as objects."""
    if all(isinstance(value, bool | int) for value in values):
        return np.array(values, np.int64)
    if all(isinstance(value, bool | int | float | None) for value in values):
        return np.array([np.nan if value is None else value for value in values], float)
    column = np.empty(len(values), object)
    column[:] = values
    return column
