"""A git checkout made from a released transformers: real source, without upstream's `utils/` and tests."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.releases import fetch
from tests.upstream.toy_checkout import commit, git


def repository(version: str, folder: Path) -> Path:
    """Make the checkout of one release in `folder`, on its branch main; returns the folder."""
    top = fetch(version).parent.parent
    shutil.copytree(top, folder, ignore=shutil.ignore_patterns(".unpacked", "__pycache__"))
    (folder / ".gitignore").write_text("__pycache__/\n", encoding="utf-8")
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "config", "user.name", "A Person")
    git(folder, "config", "user.email", "person@example.com")
    commit(folder, f"transformers {version}")
    return folder
