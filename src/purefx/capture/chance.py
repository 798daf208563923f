"""The random state during a run: fakes draw no numbers, so that each random call moves the state on by itself.

state s0: dropout, first block      state s1: dropout, second block
checkpoint sets s0 again            dropout at s0 is the first one, which is not drawn again
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from purefx._torch import without_modes
from purefx.capture.frames import current_line
from purefx.capture.recording import Call, Operand
from purefx.errors import GlobalStateChanged

State = bytes


@dataclass(slots=True)
class Chance:
    """The random states of a run.

    ``_present`` is the state that the generator is in unless the program has set it, and ``_drawn`` has, for each state
    in which a random call ran, that call and the state that it left.
    """

    _present: State = field(default_factory=lambda: random_state())
    _drawn: dict[State, tuple[Call, State]] = field(default_factory=dict)

    def earlier(self) -> Call | None:
        """The random call that ran in the present state, where the program has gone back to that.

        Raises GlobalStateChanged if the program has set a state that it was never in.
        """
        state = random_state()
        if state in self._drawn:
            return self._drawn[state][0]
        self.check_kept()
        return None

    def note(self, call: Call) -> None:
        """``call`` has drawn numbers: move the state on, as it was moved the first time."""
        state = random_state()
        if state in self._drawn:
            after = self._drawn[state][1]
        else:
            with without_modes():
                torch.rand(())
            after = self._present = random_state()
            self._drawn[state] = (call, after)
        restore_random_state(after)

    def resume(self) -> None:
        """Go back to the state in which the run was left."""
        restore_random_state(self._present)

    def check_kept(self) -> None:
        """Raise GlobalStateChanged if the program leaves another state behind than its random calls do."""
        if random_state() != self._present:
            raise GlobalStateChanged(
                "the program sets the random state",
                where=current_line(),
                remedy="call torch.manual_seed outside the function",
            )


def is_same_draw(earlier: Call, operands: tuple[Operand, ...], outputs: tuple[Operand, ...]) -> bool:
    """Whether a random call with such operands and results draws what ``earlier`` drew."""
    mine, others = (*operands, *outputs), (*earlier.operands, *earlier.outputs)
    return len(mine) == len(others) and all(
        a.region.geometry.same_layout(b.region.geometry) and a.region.dtype == b.region.dtype
        for a, b in zip(mine, others, strict=True)
    )


def random_state() -> State:
    """The random state, as Python's own memory."""
    with without_modes():
        return torch.get_rng_state().numpy().tobytes()


def restore_random_state(state: State) -> None:
    """Set what `random_state` returned."""
    with without_modes():
        torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
