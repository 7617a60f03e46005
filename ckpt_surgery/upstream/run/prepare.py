"""`prepare`, which makes series with their evidence from a checkout and options.

It decides the order of the work, and cleans up if the work ends early.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.static.results import Progress
from ckpt_surgery.upstream.evidence.body import BODY, next_commands, pull_request_body
from ckpt_surgery.upstream.evidence.judge import judged
from ckpt_surgery.upstream.evidence.page import evidence_markdown, siblings_markdown
from ckpt_surgery.upstream.evidence.results import Evidence
from ckpt_surgery.upstream.layout import MODELS, TEMPLATE, files_of, text_of
from ckpt_surgery.upstream.options import PrepareOptions
from ckpt_surgery.upstream.plan.planner import chosen_families, plan_series
from ckpt_surgery.upstream.run.checkers import UpstreamTools
from ckpt_surgery.upstream.run.checkout import SeriesBranch, check_checkout, worktrees
from ckpt_surgery.upstream.run.git import Git
from ckpt_surgery.upstream.run.interpreter import PythonInterpreter
from ckpt_surgery.upstream.run.output_folder import check_folder, output_folder, write_documents
from ckpt_surgery.upstream.run.reproduce import versions_of
from ckpt_surgery.upstream.run.series import NO_REPAIR, SeriesBuild, build_series
from ckpt_surgery.upstream.run.series_evidence import gather_evidence
from ckpt_surgery.upstream.run.workspace import Workspace
from ckpt_surgery.version import __version__


@dataclass(frozen=True, slots=True)
class FinishedSeries:
    """One finished series: its evidence, its folder, and the commands that a person would run next.

    `notice` says what was kept of a person's own work in the folder; empty if there was none.
    """

    evidence: Evidence
    folder: Path
    next: tuple[str, ...]
    notice: str = ""


@dataclass(frozen=True, slots=True)
class PrepareResult:
    """The result of a run. `left_out` families have a repair that no series has, `idle` ones none; with reasons."""

    series: tuple[FinishedSeries, ...]
    left_out: Mapping[str, str]
    idle: Mapping[str, str]


def prepare(
    checkout: Path,
    options: PrepareOptions,
    *,
    progress: Progress | None = None,
    step: Callable[[str], None] = lambda _: None,
    finished: Callable[[FinishedSeries], None] = lambda _: None,
) -> PrepareResult:
    """Make the series that `options` describe, each on a branch `ckpt-surgery/GROUP` and in a folder `out/GROUP`.

    The working tree, the index, HEAD and all other branches of the checkout stay as they are. After an error, the
    series that are finished are kept, and everything else that was made is removed.

    Args:
        checkout: the top of a git checkout of transformers.
        options: which families and rules, how grouped, on what base, and where to write.
        progress: called as models are read and run.
        step: called with a few words on what is being done.
        finished: called with each finished series.

    Raises:
        UpstreamError: no series, or no further series, could be prepared; one sentence says why.
    """
    git = Git(checkout.absolute())
    base = check_checkout(git, options.base)
    if not git.asks("ls-tree", base.sha, f"{MODELS.as_posix()}/"):
        raise UpstreamError(
            f"{options.base} of {checkout} has no {MODELS}: name a checkout of transformers, or another --base"
        )
    check_folder(options.out, checkout)
    python = PythonInterpreter.find(options.python, checkout)
    with worktrees(git, base, "base", "series") as trees:
        base_tree = Git(trees["base"])
        top = base_tree.folder
        families = chosen_families(top, options.families)
        tools = UpstreamTools.of(top, python)
        step("read the models")
        versions = versions_of(python, top)
        versions |= {"ckpt_surgery": __version__, "git": git.run("version").removeprefix("git version ")}
        plan = plan_series(
            top, families, options.codes, options.group_by, copies_follow=tools.has_converter, progress=progress
        )
        with_findings = {finding.family for finding in plan.findings}
        idle = {family: NO_REPAIR for family in plan.idle if family in with_findings}
        check_folder(options.out, checkout, tuple(planned.name for planned in plan.series))
        for planned in plan.series:
            SeriesBranch(git, planned.branch).tip()  # raises now what `set` would raise at the end
        if not plan.series:
            return PrepareResult((), {}, idle)
        if tools.has_converter:
            tools.check_ruff(top)
        space = Workspace(
            base=base,
            base_tree=base_tree,
            series_tree=Git(trees["series"]),
            tools=tools,
            plan=plan,
            options=options,
            progress=progress,
            step=step,
        )
        changed = [family for planned in plan.series for family in planned.families]
        step("verify the base")
        space.base_reports(changed)
        step("run upstream's fixers on the base")
        modular = sorted({file for family in changed for file in files_of(top, family, "modular_*.py")})
        names = [file.relative_to(top).as_posix() for file in modular]
        space.drift = tools.drift(space.series_tree.folder, names)
        done: list[FinishedSeries] = []
        left_out: dict[str, str] = {}
        for planned in plan.series:
            build = build_series(space, planned.commits)
            left_out |= build.left_out
            if build.commits:
                evidence = gather_evidence(space, planned, build, versions)
                done.append(_finish(git, space, build, evidence))
                finished(done[-1])
    return PrepareResult(tuple(done), left_out, idle)


def _finish(git: Git, space: Workspace, build: SeriesBuild, evidence: Evidence) -> FinishedSeries:
    """Judge a series, write its folder, and point its branch to it: all of it or nothing."""
    tip, branch, out = build.commits[-1].sha, SeriesBranch(git, evidence.branch), space.options.out
    place = out / evidence.group
    before = branch.tip()
    try:
        with output_folder(out, evidence.group) as folder:
            git.fetch(space.series_tree, tip)
            names = space.series_tree.patches(space.base, tip, folder)
            space.base_tree.restore()  # upstream's checkers and tests may leave files behind
            applies = space.base_tree.same_after_am(space.base, tip, folder, names)
            evidence = judged(
                replace(evidence, patches=names),
                build.unreproduced,
                applies=applies,
                lost=build.lost,
                drifted=sorted(build.drifted),
            )
            documents = {
                "evidence.json": evidence.to_json(),
                "evidence.md": evidence_markdown(evidence),
                "siblings.md": siblings_markdown(evidence),
                BODY: pull_request_body(evidence, text_of(space.base_tree.folder / TEMPLATE)),
            }
            notice = write_documents(folder, documents, place)
            branch.set(tip)
    except BaseException:
        branch.put_back(tip, before)
        raise
    return FinishedSeries(evidence, place, tuple(next_commands(evidence, place, git.folder)), notice)
