"""Generated texts compared with files.

After an intended change, run the tests with CKPT_SURGERY_UPDATE_SNAPSHOTS=1 and read the difference in git.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

UPDATE = "CKPT_SURGERY_UPDATE_SNAPSHOTS"


def check_snapshot(text: str, path: Path) -> None:
    """Raise AssertionError with the difference if `text` is not what the file holds, or write the file if asked."""
    if os.environ.get(UPDATE) == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
        return
    expected = path.read_bytes().decode() if path.is_file() else ""
    lines = difflib.unified_diff(expected.splitlines(), text.splitlines(), path.name, "the text now", lineterm="")
    assert text == expected, "\n".join([*lines, f"if that is meant: {UPDATE}=1 python -m pytest ..."])
