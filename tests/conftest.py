"""Settings of Hypothesis: the same examples at each run, and no deadline, as these tests compile."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("purefx", deadline=None, derandomize=True)
settings.load_profile("purefx")
