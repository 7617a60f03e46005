"""Fixtures that the tests of git share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.upstream.git_toys import sh


@pytest.fixture(scope="session")
def built_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a repository with one commit, once."""
    folder = tmp_path_factory.mktemp("repository") / "checkout"
    folder.mkdir()
    sh(folder, "init", "--quiet", "--initial-branch=main")
    sh(folder, "config", "user.name", "A Person")
    sh(folder, "config", "user.email", "person@example.org")
    (folder / "oak.py").write_text("oak = 1\n")
    (folder / "elm.py").write_text("elm = 1\n")
    sh(folder, "add", ".")
    sh(folder, "commit", "--quiet", "--message=first", GIT_COMMITTER_DATE="2024-02-03T04:05:06+01:00")
    return folder


@pytest.fixture
def repository(built_repository: Path, tmp_path: Path) -> Path:
    return shutil.copytree(built_repository, tmp_path / "checkout")
