"""The command line on small files: its exit codes and what it prints."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from purefx.cli import app

WRITES_ITS_ARGUMENT = """
import torch

def accumulate(total, x):
    total.add_(x)
    return total.view(-1)

def accumulate_arguments():
    return torch.zeros(2, 3), torch.ones(3)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "program.py"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def assert_no_verdict(result: Result, *parts: str) -> None:
    """Exit code 2, nothing on standard output, and a message that holds every part."""
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    for part in parts:
        assert part in result.stderr


def test_check_of_a_faithful_program_ends_with_0(file: Path) -> None:
    file.write_text(WRITES_ITS_ARGUMENT)
    result = run("check", f"{file}:accumulate")
    assert result.exit_code == 0, result.output
    assert "same as eager" in result.stdout


TRAINS = """
import torch

def loss(x, w):
    return (x * w).exp().sum()

def loss_arguments():
    return torch.ones(2, 3), torch.ones(3, requires_grad=True)
"""


def test_a_program_with_gradients_is_checked_explained_and_traced(file: Path) -> None:
    file.write_text(TRAINS)
    assert "same as eager" in run("check", f"{file}:loss").stdout
    explanation = run("explain", f"{file}:loss").stdout
    assert "gradients\n  given those of result: of w\n" in explanation
    traced = run("trace", f"{file}:loss")
    assert traced.exit_code == 0
    assert traced.stdout.startswith("def loss(\n")
    assert explanation.endswith(f"\n{traced.stdout}")
    assert "def loss_backward(\n" in traced.stdout
    assert "# w: float32[3], read only, gets a gradient" in traced.stdout


def test_a_partition_is_chosen_by_name(file: Path) -> None:
    file.write_text(TRAINS.replace("(x * w).exp()", "(x * w).sin().exp()"))
    default, least = (run("explain", f"{file}:loss", "--partition", kept).stdout for kept in ("default", "min_cut"))
    assert "saved: 48 bytes for the backward alone" in default
    assert "saved: 0 bytes for the backward alone" in least
    assert run("explain", f"{file}:loss", "--partition", "another").exit_code == 2
    assert "same as eager" in run("check", f"{file}:loss", "--partition", "min_cut").stdout
    assert run("check", f"{file}:loss", "--partition", "another").exit_code == 2


def test_check_of_a_program_that_raises_ends_with_2(file: Path) -> None:
    file.write_text(
        "import torch\ndef bad(x):\n    return x.view(7)\ndef make_arguments():\n    return torch.zeros(2)\n"
    )
    result = run("check", f"{file}:bad")
    assert result.exit_code == 2, result.output
    assert "both raise RuntimeError: shape '[7]' is invalid" in result.stderr


def test_check_of_a_program_that_reads_the_text_of_a_tensor_ends_with_1(file: Path) -> None:
    file.write_text(
        "import torch\ndef count(x):\n    return x + len(str(x))\ndef make_arguments():\n    return torch.zeros(2)\n"
    )
    result = run("check", f"{file}:count")
    assert result.exit_code == 1, result.output
    assert "differs from eager" in result.stdout


def test_explain_prints_the_contract_and_the_pure_graph(file: Path) -> None:
    file.write_text(WRITES_ITS_ARGUMENT)
    result = run("explain", f"{file}:accumulate")
    assert result.exit_code == 0, result.output
    assert "total" in result.stdout
    assert "def " in result.stdout


def test_explain_without_graph_prints_less(file: Path) -> None:
    file.write_text(WRITES_ITS_ARGUMENT)
    whole = run("explain", f"{file}:accumulate")
    contract = run("explain", f"{file}:accumulate", "--no-graph")
    assert contract.exit_code == 0, contract.output
    assert whole.stdout.startswith(contract.stdout)
    assert len(contract.stdout) < len(whole.stdout)


def test_piped_output_has_no_control_sequences(file: Path) -> None:
    file.write_text(WRITES_ITS_ARGUMENT)
    result = run("explain", f"{file}:accumulate")
    assert "\x1b" not in result.output
    assert result.stderr == ""


def test_a_module_instance_is_a_target(file: Path) -> None:
    file.write_text(
        "import torch\n"
        "norm = torch.nn.BatchNorm1d(3).requires_grad_(False)\n"
        "def norm_arguments():\n"
        "    return torch.randn(4, 3)\n"
    )
    result = run("check", f"{file}:norm")
    assert result.exit_code == 0, result.output


def test_arguments_are_made_by_the_function_that_the_user_names(file: Path) -> None:
    file.write_text(WRITES_ITS_ARGUMENT.replace("accumulate_arguments", "two_matrices"))
    assert_no_verdict(run("check", f"{file}:accumulate"), "accumulate_arguments()", "make_arguments()")
    result = run("check", f"{file}:accumulate", "--arguments", "two_matrices")
    assert result.exit_code == 0, result.output


def test_a_refused_program_ends_with_2_and_says_where(file: Path) -> None:
    file.write_text(
        "import torch\n"
        "def clip(x):\n"
        "    if x.sum() > 1:\n"
        "        return x / 2\n"
        "    return x\n"
        "def make_arguments():\n"
        "    return torch.ones(3)\n"
    )
    assert_no_verdict(run("check", f"{file}:clip"), "program.py", "3", "instead")
    assert_no_verdict(run("explain", f"{file}:clip"), "program.py", "3", "instead")


def test_an_error_of_the_arguments_function_keeps_its_traceback(file: Path) -> None:
    file.write_text("def f(x): return x\ndef make_arguments(): return 1 / 0\n")
    result = run("explain", f"{file}:f")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "ZeroDivisionError" in result.stderr


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert_no_verdict(run("check", f"{tmp_path}/absent.py:f"), "there is no file", "absent.py")


def test_a_missing_function_is_named_beside_those_there_are(file: Path) -> None:
    file.write_text(WRITES_ITS_ARGUMENT)
    assert_no_verdict(run("check", f"{file}:absent"), "no function absent", "accumulate, accumulate_arguments")


@pytest.mark.parametrize("target", ["program.py", "program.py:", "program.py:a.b", "f"])
def test_a_target_without_a_function_is_refused_with_the_form_to_use(target: str) -> None:
    assert_no_verdict(run("check", target), "FILE.py:function")


def test_a_file_that_is_not_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("f")
    assert_no_verdict(run("check", f"{tmp_path}/notes.txt:f"), "not a Python file")


def test_a_class_is_not_a_target(file: Path) -> None:
    file.write_text("class Net: pass\n")
    assert_no_verdict(run("check", f"{file}:Net"), "the class Net", "nn.Module instance")


def test_a_file_that_cannot_be_loaded_is_refused_with_the_line(file: Path) -> None:
    file.write_text("import sys\nimport there_is_no_such_module\n")
    assert_no_verdict(run("check", f"{file}:f"), "there_is_no_such_module", "program.py:2")


def test_an_unknown_option_is_bad_usage() -> None:
    assert run("check", "--no-such-option").exit_code == 2


def test_a_file_imports_its_neighbours_and_the_path_stays_as_it_was(file: Path) -> None:
    (file.parent / "a_neighbour_of_the_program.py").write_text("import torch\nONE = torch.ones(2)\n")
    file.write_text(
        "from a_neighbour_of_the_program import ONE\n"
        "def double(x):\n"
        "    return x * 2\n"
        "def make_arguments():\n"
        "    return ONE\n"
    )
    before = list(sys.path)
    result = run("check", f"{file}:double")
    assert result.exit_code == 0, result.output
    assert sys.path == before


def test_the_file_that_the_readme_shows_gives_its_target_arguments(file: Path) -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    _, _, section = readme.partition("## The command line")
    _, _, source = section.partition("```python\n")
    file.write_text(source.partition("```")[0])
    assert run("check", f"{file}:step").stdout == "step: same as eager\n"


def test_another_function_may_make_the_arguments(file: Path) -> None:
    file.write_text(
        f"{WRITES_ITS_ARGUMENT}\n\ndef twice(total, x):\n    return accumulate(accumulate(total, x), x[0])\n"
    )
    assert_no_verdict(run("check", f"{file}:twice"), "twice_arguments()", "--arguments")
    assert run("check", f"{file}:twice", "--arguments", "accumulate_arguments").exit_code == 0


@pytest.mark.parametrize("command", ["check", "explain", "trace"])
def test_a_number_of_arguments_that_the_function_does_not_take_is_told(file: Path, command: str) -> None:
    file.write_text(WRITES_ITS_ARGUMENT.replace("torch.zeros(2, 3), torch.ones(3)", "torch.zeros(2, 3)"))
    said = "accumulate_arguments gives 1 arguments to accumulate(total, x): missing a required argument: 'x'"
    assert_no_verdict(run(command, f"{file}:accumulate"), said, "instead: ")
