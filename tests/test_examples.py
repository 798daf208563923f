"""The examples, run as scripts and as targets of the command line."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from typer.testing import CliRunner

from purefx.cli import app

EXAMPLES = Path(__file__).parent.parent / "examples"

TARGETS = [
    "aliased_inputs.py:flattened",
    "aliased_inputs.py:overlapping_slices",
    "aliased_inputs.py:elected_base",
    "aliased_inputs.py:two_dtypes",
    "batchnorm_train_mode.py:network",
    "llama_decode.py:step",
    "train.py:model",
]


def printed_by(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def test_a_llama_decodes_as_in_eager(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    assert "same as eager: 1 prefill, 8 decode steps" in printed_by("llama_decode.py", capsys)


def test_a_llama_trains_as_in_eager(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    assert "same as eager: 2 optimizers, 5 steps" in printed_by("train.py", capsys)


def test_batch_normalisation_updates_its_buffers_as_in_eager(capsys: pytest.CaptureFixture[str]) -> None:
    printed = printed_by("batchnorm_train_mode.py", capsys)
    assert "features.1.num_batches_tracked" in printed
    assert "same as eager: 3 batches, 6 buffers" in printed


def test_four_programs_with_aliased_inputs_are_as_in_eager(capsys: pytest.CaptureFixture[str]) -> None:
    printed = printed_by("aliased_inputs.py", capsys)
    assert printed.count("same as eager") == 4
    assert "as_strided" not in printed


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_named_in_an_example_is_the_same_as_eager(target: str) -> None:
    result = CliRunner().invoke(app, ["check", f"{EXAMPLES / target}"])
    assert result.exit_code == 0, result.output
    assert "same as eager" in result.stdout


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_named_in_an_example_is_explained(target: str) -> None:
    result = CliRunner().invoke(app, ["explain", f"{EXAMPLES / target}"])
    assert result.exit_code == 0, result.output
