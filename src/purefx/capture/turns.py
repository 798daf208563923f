"""Captures take turns: each puts fakes into modules and variables, where other threads may look.

with ONE_AT_A_TIME:                      a capture
weight = module.weight               a fake

for _ in ONE_AT_A_TIME.undisturbed():    a call in another thread
weight = module.weight               the parameter
"""

from __future__ import annotations

import threading
from collections.abc import Iterator


class TurnLock:
    """A lock that its thread may take again, and that counts when it is taken and given back.

    A reader does not take it: whoever has found the count as it was, and nobody else's turn, has read undisturbed
    (a sequence lock).
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner: int | None = None
        self._depth = 0
        self._count = 0

    def __enter__(self) -> None:
        """Wait for one's turn."""
        self._lock.acquire()
        if not self._depth:
            self._owner = threading.get_ident()  # before it is counted: no count of a turn is seen without its owner
            self._count += 1
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        """End one's turn."""
        self._depth -= 1
        if not self._depth:
            self._count += 1
            self._owner = None
        self._lock.release()

    def is_mine(self) -> bool:
        """Whether it is the turn of this thread."""
        return self._owner == threading.get_ident()

    def undisturbed(self) -> Iterator[None]:
        """Run a block of reads until no other thread has had a turn meanwhile."""
        while True:
            before = self._count
            if self._owner is None or self.is_mine():
                yield
                if self._count == before:
                    return
            else:
                with self:
                    pass


ONE_AT_A_TIME = TurnLock()
"""The turns of captures."""
