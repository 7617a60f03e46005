"""What a human is told to run next: as far as the series is ready, and no further."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from ckpt_surgery.upstream.body import next_commands
from ckpt_surgery.upstream.results import Evidence
from tests.upstream import evidence_cases as cases


def commands(evidence: Evidence) -> list[list[str]]:
    """The next commands as a shell would split them."""
    return [shlex.split(one) for one in next_commands(evidence, Path("/out/it's here"), Path("/a checkout"))]


def test_the_next_commands_go_from_the_search_for_duplicates_to_a_draft() -> None:
    evidence = cases.ready()
    found = commands(evidence)
    assert found[0] == ["gh", "issue", "view", cases.ISSUE, "--comments"]
    assert [
        "gh",
        "pr",
        "list",
        "--repo",
        "huggingface/transformers",
        "--state",
        "open",
        "--search",
        "41234 in:body",
    ] in found
    assert [one[-1] for one in found if one[:2] == ["gh", "pr"]][-3:-1] == [
        "clvp gradient checkpointing",
        "zamba2 gradient checkpointing",
    ]
    assert ["git", "-C", "/a checkout", "diff", evidence.base, evidence.branch] in found
    (applied,) = (one for one in found if "am" in one)
    assert applied[-2:] == [f"/out/it's here/{patch}" for patch in evidence.patches]
    assert ["PYTHONPATH=src", "python", "-m", "pytest", "tests/models/clvp", "tests/models/zamba2"] in found
    assert found[-2] == ["git", "push", "--set-upstream", "fork", evidence.branch]
    assert found[-1][:3] == ["gh", "pr", "create"]
    assert "--draft" in found[-1]
    assert found[-1][-2:] == ["--body-file", "/out/it's here/body.md"]
    assert "--web" not in found[-1]  # gh takes no --draft beside it


def test_a_series_that_is_not_ready_is_only_to_be_looked_at() -> None:
    for evidence in (cases.not_ready(), replace(cases.not_ready(), coordination="")):
        assert [one[:4] for one in commands(evidence)] == [
            ["git", "-C", "/a checkout", "log"],
            ["git", "-C", "/a checkout", "diff"],
        ]


def test_without_an_issue_the_next_step_is_one_and_nothing_is_pushed() -> None:
    found = commands(cases.uncoordinated())
    assert found[-1] == ["gh", "issue", "create", "--repo", "huggingface/transformers", "--web"]
    assert found[0][:3] == ["gh", "issue", "list"]
    assert not any({"push", "create", "fork"} & set(one) for one in found[:-1])


def test_a_relative_folder_is_found_from_the_clone_too() -> None:
    found = next_commands(cases.ready(), Path("out"), Path("checkout"))
    assert shlex.split(found[-1])[-1] == str(Path("out").absolute() / "body.md")
