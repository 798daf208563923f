"""Every field agrees with PyTorch's analysis, but for listed ones, where eager shows that purefx is right."""

from __future__ import annotations

import pytest
import torch

from purefx import collect_metadata
from tests.analysis import programs, programs_of_state, programs_of_views
from tests.analysis.case import Case
from tests.analysis.disagreements import DISAGREEMENTS, Disagreement
from tests.support.eager_run import run_eager
from tests.support.peer_metadata import REFUSAL, facts_of, peer_facts

CASES = (*programs.CASES, *programs_of_views.CASES, *programs_of_state.CASES)


@pytest.fixture(autouse=True)
def grad_mode_as_before() -> object:
    """Programs, and PyTorch's analysis, may leave another grad mode behind."""
    yield
    torch.set_grad_enabled(True)


@pytest.mark.parametrize("keep", [False, True], ids=["out_of_graph", "in_graph"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_only_listed_fields_differ(case: Case, *, keep: bool) -> None:
    ours = facts_of(collect_metadata(case.function, keep_input_mutations=keep)(*case.arguments()))
    theirs = peer_facts(case.function, case.arguments(), keep_input_mutations=keep)
    different = {REFUSAL} if REFUSAL in theirs else {x for x in {**ours, **theirs} if ours.get(x) != theirs.get(x)}
    listed = [d.fields for d in DISAGREEMENTS.get(case.name, ()) if keep in d.keep]
    assert different == set().union(*listed), {x: (ours.get(x), theirs.get(x)) for x in different}


@pytest.mark.parametrize(("name", "disagreement"), [(name, d) for name, found in DISAGREEMENTS.items() for d in found])
def test_eager_shows_what_purefx_says(name: str, disagreement: Disagreement) -> None:
    case = next(case for case in CASES if case.name == name)
    assert disagreement.seen(run_eager(case.function, case.arguments())), disagreement.reason
