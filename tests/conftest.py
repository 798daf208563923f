"""Settings of Hypothesis: the same examples at each run, and no deadline, as these tests compile; and a fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

settings.register_profile("purefx", deadline=None, derandomize=True)
settings.load_profile("purefx")


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Dynamo as if it had compiled nothing, and the same afterwards."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
