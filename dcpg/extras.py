"""Packages that training and evaluation do without, and the extras of dcpg that install them."""

from __future__ import annotations

from importlib.util import find_spec

from dcpg.errors import BadInput

EXTRAS = {  # extra -> what it is for, and its packages with the modules that they bring
    "report": ("curves, analyses and reports", {"matplotlib": "matplotlib", "plotly": "plotly", "pillow": "PIL"}),
    "video": ("videos", {"av": "av", "pillow": "PIL"}),
    "ray": ("sweeps on a Ray cluster", {"ray": "ray"}),
    "wandb": ("logging to Weights & Biases", {"wandb": "wandb"}),
}


def need(extra: str, what: str, *only: str) -> None:
    """Raise the sentence that names the extra if one of its packages is missing; `what` is what needs it.

    With `only`, the other packages of the extra may be missing.
    """
    for package, module in EXTRAS[extra][1].items():
        if (not only or package in only) and find_spec(module) is None:
            raise BadInput(f"{what} needs {package}; run: pip install 'dcpg[{extra}]'")
