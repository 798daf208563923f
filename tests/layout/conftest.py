"""No deadline on a single example: the first one imports torch."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("layout", deadline=None)
settings.load_profile("layout")
