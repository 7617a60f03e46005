"""The figures of source files."""

from __future__ import annotations

from pathlib import Path

from benchmarks.source_figures import python_files, row

SOURCE = '''"""A module."""

def whether(x):
    """Whether x is there."""
    return x is not None

class Case:
    """A case."""

    def run(self):
        """Run it."""

    @property
    def name(self):
        """The name of it."""
'''


def test_definitions_functions_and_docstrings_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(SOURCE)
    (tmp_path / "template.py").write_text("{% not Python %}\n")
    (tmp_path / "linked").symlink_to(tmp_path, target_is_directory=True)
    assert row("all", python_files([tmp_path])) == "| all | 16 | 2 | 125.0 | 2 | 50 % |"
