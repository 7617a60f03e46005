"""A git checkout made from a released transformers: real source, without upstream's `utils/` and tests."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from tests.releases import fetch
from tests.upstream.toy_checkout import commit, git


def repository(version: str, folder: Path, families: Collection[str] = ()) -> Path:
    """Make the checkout of one release in `folder`, on its branch main, with these model folders or all."""
    top = fetch(version).parent.parent
    shutil.copytree(top, folder, ignore=shutil.ignore_patterns(".unpacked", "__pycache__"))
    for entry in (folder / "src/transformers/models").glob("*/") if families else ():
        if entry.name not in families:
            shutil.rmtree(entry)
    (folder / ".gitignore").write_text("__pycache__/\n", encoding="utf-8")
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "config", "user.name", "A Person")
    git(folder, "config", "user.email", "person@example.com")
    commit(folder, f"transformers {version}")
    return folder
