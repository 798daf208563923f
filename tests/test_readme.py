"""The pages for readers are true: their Python prints what they show, their commands are those of CI.

A ``python`` block followed by a ``text`` block prints that text; one without prints nothing. The blocks under
one heading run in one namespace, as one file would: with the blocks joined by an empty line, the lines that
purefx names are the lines of that file. ``python -m tests.test_readme`` writes into the pages what their
blocks print now.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$\n*", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^(?=##+ )", re.MULTILINE)


@dataclass(frozen=True)
class Section:
    """What stands under one heading of a page."""

    page: Path
    text: str

    @property
    def title(self) -> str:
        """The page and the heading."""
        return f"{self.page.stem}: {self.text.splitlines()[0].strip('# ')}"

    @property
    def blocks(self) -> list[re.Match[str]]:
        """The fenced blocks, in order."""
        return list(FENCE.finditer(self.text))

    def programs(self) -> Iterator[tuple[str, re.Match[str] | None]]:
        """Each Python block with the block of text that follows it, if one does."""
        for block, after in pairwise([*self.blocks, None]):
            if block is not None and block[1] == "python":
                follows = after is not None and after[1] == "text" and after.start() == block.end()
                yield block[2], after if follows else None


def sections(page: Path) -> list[Section]:
    """The parts of ``page`` from heading to heading."""
    return [Section(page, text) for text in HEADING.split(page.read_text()) if text]


def printed(section: Section) -> Iterator[tuple[re.Match[str] | None, str]]:
    """Run the Python of ``section``: for each block, the text that is shown and the text that it prints."""
    file = f"{section.page.stem.lower()}.py"
    namespace: dict[str, object] = {"__name__": section.page.stem}
    above = 0
    for source, shown in section.programs():
        output = io.StringIO()
        with contextlib.redirect_stdout(output), torch.random.fork_rng():
            exec(compile("\n" * above + source, file, "exec"), namespace)
        above += source.count("\n") + 1
        yield shown, without_trailing_spaces(output.getvalue())


def without_trailing_spaces(text: str) -> str:
    """``text`` as an editor leaves it."""
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


WITH_PYTHON = [section for page in PAGES for section in sections(page) if any(section.programs())]


@pytest.mark.parametrize("section", WITH_PYTHON, ids=lambda section: section.title)
def test_the_python_of_a_page_prints_what_the_page_shows(section: Section) -> None:
    for shown, text in printed(section):
        assert text == ("" if shown is None else shown[2])


def install_commands() -> list[str]:
    """The lines of the README's shell blocks that install something."""
    blocks = [block for section in sections(PAGES[0]) for block in section.blocks if block[1] == "bash"]
    return [line for block in blocks for line in block[2].splitlines() if line.startswith("pip install")]


def test_the_second_command_of_the_readme_is_the_one_that_ci_runs() -> None:
    assert install_commands()[1] == (ROOT / ".ci" / "run").read_text().splitlines()[-1]


def test_the_first_command_of_the_readme_checks_and_explains_the_main_example() -> None:
    install, *rest = install_commands()[0].split(" && ")
    assert install == "pip install '.[llama]'"
    assert rest == [f"purefx {verb} examples/llama_decode.py:step" for verb in ("check", "explain")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_links_to_exist(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", FENCE.sub("", page.read_text()))
    assert [link for link in links if not (page.parent / link).exists()] == []


def main() -> None:
    """Write into each page what its blocks print."""
    for page in PAGES:
        page.write_text("".join(map(as_printed, sections(page))))


def as_printed(section: Section) -> str:
    """The text of ``section`` with what its blocks print in the place of what it shows."""
    text, end = "", 0
    for shown, output in printed(section):
        if shown is not None:
            text += section.text[end : shown.start(2)] + output
            end = shown.end(2)
    return text + section.text[end:]


if __name__ == "__main__":
    main()
