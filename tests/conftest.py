"""What several tests share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Small networks are fastest, and tests steadiest, on one thread."""
    torch.set_num_threads(1)
