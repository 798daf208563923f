"""An explanation says what is written, who shares memory, how results are made, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from purefx.pipeline import run_stages
from purefx.report.copies import AddedCopy, ElectedBase, SharedBase, SyntheticBase, WriteBack
from purefx.report.explain import COLUMNS, Explanation, explain
from purefx.report.sharing import WIDTH, draw


def explained(function: Callable[..., Any], *args: Any, dynamic: bool = False, **kwargs: Any) -> Explanation:
    return explain(run_stages(function, args, kwargs, dynamic=dynamic))


def step(x: Tensor, cache: Tensor) -> Any:
    cache[1:3].copy_(x)
    return cache.view(-1), x + 1


def add_one(a: Tensor, b: Tensor) -> Tensor:
    a.add_(1)
    return b * 2


def explained_step() -> Explanation:
    return explained(step, torch.ones(2, 3), torch.zeros(4, 3))


def section(explanation: Explanation, title: str) -> str:
    """The lines below ``title``, each without its margins."""
    _, _, rest = str(explanation).partition(f"\n{title}\n")
    lines = rest.splitlines()
    ends = (i for i, line in enumerate(lines) if line and not line.startswith(" "))
    return "\n".join(line.strip() for line in lines[: next(ends, len(lines))]).strip()


def test_a_write_is_told_with_region_operator_and_line() -> None:
    line = step.__code__.co_firstlineno + 1
    assert section(explained_step(), "arguments") == (
        f"cache: float32[4, 3]\ncache[1:3]: 6 elements written by copy_   test_explain.py:{line}\nread only: x"
    )
    (write,) = explained_step().writes
    assert (write.argument, write.target, write.elements) == ("cache", "cache[1:3]", 6)
    assert [source.op for source in write.sources] == ["copy_"]


def test_shared_memory_is_told_and_drawn() -> None:
    text = section(explained_step(), "shared memory")
    full, half = "█" * 48, "·" * 12 + "█" * 24 + "·" * 12
    assert text == (
        "elements 0 to 11, float32\n"
        f"cache      0 to 11  {full}\n"
        f"result[0]  0 to 11  {full}\n"
        f"written    3 to 8   {half}\n"
        "cache shows the same elements as result[0]: 0 to 11"
    )


def test_results_are_told_with_the_chain_that_makes_them() -> None:
    assert (
        section(explained_step(), "results")
        .splitlines()[0]
        .startswith("result[0]: float32[12], made again as cache.view([-1])")
    )


def test_the_graph_is_no_part_of_the_text() -> None:
    explanation = explained_step()
    assert "aten." not in str(explanation)
    assert "def " not in str(explanation)
    assert str(explanation.program).startswith("def step(")


def test_write_backs_and_copies_are_facts() -> None:
    explanation = explained_step()
    assert WriteBack("cache[1:3]", 6, in_place=False) in explanation.copies
    assert [(c.op, c.elements) for c in explanation.copies if isinstance(c, AddedCopy)] == [("clone", 6)]


def test_a_copy_that_the_program_asks_for_is_not_an_added_one() -> None:
    explanation = explained(lambda x: x.clone(), torch.ones(3))
    assert [c for c in explanation.copies if isinstance(c, AddedCopy)] == []


def test_an_elected_base_names_those_that_it_stands_for() -> None:
    x = torch.zeros(5)
    explanation = explained(add_one, x, x[1:])
    assert ElectedBase("a", ("b",)) in explanation.copies
    (sharing,) = [s for s in explanation.sharings if len(s.tensors) > 1]
    assert [str(overlap) for overlap in sharing.overlaps] == ["a includes b: 1 to 4"]


def test_a_synthetic_base_says_how_long_it_is() -> None:
    x = torch.zeros(5)
    explanation = explained(add_one, x[:3], x[1:])
    assert SyntheticBase(("a", "b"), 5) in explanation.copies
    (sharing,) = [s for s in explanation.sharings if len(s.tensors) > 1]
    assert [o.elements for o in sharing.overlaps] == [((1, 2),)]


def test_columns_share_a_storage_and_no_element() -> None:
    x = torch.zeros(5)
    explanation = explained(add_one, x[::2], x[1::2])
    assert "a, b: one storage, no common element" in str(explanation)
    assert "a        0 to 4  ████████········████████········████████" in str(explanation)


def test_a_shared_base_names_its_results() -> None:
    def f(x: Tensor) -> Any:
        y = x * 2
        return y[0], y[1]

    assert SharedBase(("result[0]", "result[1]"), 6) in explained(f, torch.ones(2, 3)).copies


def test_tensors_of_two_dtypes_are_drawn_in_the_narrower_one() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return y + 1

    x = torch.zeros(4)
    (sharing,) = [s for s in explained(f, x, x.view(torch.int16)[:2]).sharings if len(s.tensors) > 1]
    assert draw(sharing)[0] == "elements 0 to 7, int16"
    assert [str(overlap) for overlap in sharing.overlaps] == ["x includes y: 0 to 1"]


def test_guards_are_told_in_the_words_of_the_user() -> None:
    explanation = explained(lambda state: state["w"] + 1, {"w": torch.ones(2, 3)})
    conditions = [g.condition for g in explanation.guards if g.subject == "state['w']"]
    assert "state['w'].shape == (2, 3)" in conditions
    assert "state['w'].dtype is torch.float32" in conditions


def test_the_guards_of_a_module_are_named_by_its_path() -> None:
    module = torch.nn.BatchNorm1d(3).requires_grad_(requires_grad=False)
    explanation = explained(module, torch.ones(4, 3))
    assert {"input", "self.weight", "self.running_mean"} <= {g.subject for g in explanation.guards}
    assert "self.running_mean: 3 elements written" in str(explanation)


def test_a_dynamic_program_is_drawn_at_the_sizes_of_the_call() -> None:
    def f(x: Tensor) -> Tensor:
        x[1:].mul_(2)
        return x.sum()

    explanation = explained(f, torch.ones(3, 4), dynamic=True)
    assert "elements 0 to 11, float32" in str(explanation)


def test_no_line_is_wider_than_the_page() -> None:
    def f(a_long_name_for_a_dictionary: dict[str, Tensor]) -> Any:
        rows = [x.add_(1) for x in a_long_name_for_a_dictionary.values()]
        return [row.view(-1)[1:] for row in rows]

    base = torch.zeros(100, 100)
    tensors = {f"an even longer name of a tensor {i}": base[i : i + 40] for i in range(6)}
    explanation = explained(f, tensors)
    assert max(map(len, str(explanation).splitlines())) <= COLUMNS
    assert max(len(line) for sharing in explanation.sharings for line in draw(sharing)) <= WIDTH
    assert str(explanation) == str(explained(f, tensors))


# ---- what no guard watches


class Config:
    """An object that is no tensor and no module."""

    def __init__(self) -> None:
        self.epsilon, self.unread = 0.5, 3


class Scaled(torch.nn.Module):
    """Reads numbers and texts of its own, and of an object."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.mode, self.unread, self.calls = 2.0, "fast", 1, 0
        self.config = Config()
        self.inner = torch.nn.Sequential(torch.nn.Dropout(0.25), torch.nn.Dropout(0.25))

    def forward(self, x: Tensor) -> Tensor:
        """Scale ``x``."""
        self.calls += 1
        return self.shifted(self.inner(x)) * self.scale if self.mode == "fast" else x

    def shifted(self, x: Tensor) -> Tensor:
        """Add what the object has, and what a global has."""
        return x + self.config.epsilon + OPTIONS["shift"]


OPTIONS = {"shift": 7, "unread": 8}


def test_values_that_no_guard_watches_are_listed() -> None:
    found = {place: x.value for x in explained(Scaled(), torch.ones(2)).unchecked for place in x.places}
    assert found == {
        "self.scale": "2.0",
        "self.mode": "'fast'",
        "self.config.epsilon": "0.5",
        "self.inner.0.p": "0.25",
        "self.inner.1.p": "0.25",
        "self.inner.0.inplace": "False",
        "self.inner.1.inplace": "False",
        "OPTIONS['shift']": "7",
    }


def test_values_that_no_guard_watches_are_told_with_equal_ones_together() -> None:
    factor, flag = 3, True

    def program(x: Tensor, module: torch.nn.Module) -> Tensor:
        return module(x) * factor if flag else x

    text = section(explained(program, torch.ones(2), Scaled()), "not checked, and taken as captured")
    assert text.splitlines()[:4] == ["factor: 3", "flag: True", "module.scale: 2.0", "module.mode: 'fast'"]
    assert "module.inner.0.p, module.inner.1.p: 0.25" in text


def test_nothing_is_listed_of_a_program_without_such_values() -> None:
    assert not explained_step().unchecked
    assert "not checked" not in str(explained_step())


def test_who_is_to_share_storage_is_told_in_pairs() -> None:
    whole = torch.zeros(6)
    found = explained(lambda a, b, c: a.add_(b) + c, whole[:3], whole[3:], torch.ones(3)).guards
    assert "distinct_storages(a, c) and share_storage(b, a)" in [str(guard) for guard in found]
