"""`prepare`: a checkout and what is wished for it in, series with their evidence out.

The order of the work, and what becomes of a checkout when it ends early, are decided here.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ckpt_surgery.codemods import RULES
from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.static.results import Progress
from ckpt_surgery.upstream.evidence.body import next_commands, pull_request_body, siblings_markdown
from ckpt_surgery.upstream.evidence.evidence_page import evidence_markdown
from ckpt_surgery.upstream.evidence.judge import judged
from ckpt_surgery.upstream.evidence.results import Check, Evidence, Sibling
from ckpt_surgery.upstream.plan.layout import MODELS, TEMPLATE, TESTS, files_of
from ckpt_surgery.upstream.plan.plan import Group, Grouping, Plan, chosen_families, make_plan
from ckpt_surgery.upstream.plan.signatures import changed_signatures
from ckpt_surgery.upstream.run.branches import branch_of, free_branch, put_back, set_branch
from ckpt_surgery.upstream.run.checks import check, drift, tools_of
from ckpt_surgery.upstream.run.delivery import BODY, check_folder, delivered, write_documents
from ckpt_surgery.upstream.run.git import Git, checked, patches, restore, same_after_am, worktrees
from ckpt_surgery.upstream.run.interpreter import find_interpreter, probe
from ckpt_surgery.upstream.run.regression import family_tests
from ckpt_surgery.upstream.run.series import NO_FAULT, Draft, Workshop, draft
from ckpt_surgery.version import __version__

_BY_HAND = "none of the chosen rules has a repair for it: work for a person"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is to be prepared. `families` empty means all that are not deprecated, `codes` empty all rules."""

    out: Path
    families: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    by: Grouping = "root"
    base: str = "main"
    python: Path | None = None
    coordination: str = ""
    include_unreproduced: bool = False
    jobs: int | None = None

    @property
    def command(self) -> str:
        """The command line that asks for the same, without a path of this machine."""
        parts = ["ckpt_surgery", "pr", "transformers"]
        parts += ["--families", ",".join(self.families)] if self.families else ["--all"]
        parts += ["--select", ",".join(self.codes)] if self.codes else []
        parts += ["--group-by", self.by, "--base", self.base]
        parts += ["--include-unreproduced"] if self.include_unreproduced else []
        return shlex.join(parts + (["--coordination", self.coordination] if self.coordination else []))


@dataclass(frozen=True, slots=True)
class Delivered:
    """One finished series: its evidence, its folder, and what a human would run next."""

    evidence: Evidence
    folder: Path
    next: tuple[str, ...]
    notice: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`left_out` are families with a repair that is in no series, `idle` those without one; with the reasons."""

    series: tuple[Delivered, ...]
    left_out: Mapping[str, str]
    idle: Mapping[str, str]


def prepare(
    checkout: Path,
    wishes: Wishes,
    *,
    progress: Progress | None = None,
    step: Callable[[str], None] = lambda _: None,
    finished: Callable[[Delivered], None] = lambda _: None,
) -> Outcome:
    """Make the series that `wishes` asks for, each on a branch `ckpt-surgery/GROUP` and in a folder `out/GROUP`.

    The working tree, the index, HEAD and every other branch of the checkout stay as they are. A series that is
    finished when something goes wrong is kept, everything else that was made goes.

    Args:
        checkout: the top of a git checkout of transformers.
        wishes: which families and rules, how grouped, on what, and where to.
        progress: called as models are read and run.
        step: told in a few words what is done now.
        finished: called with each series that is done.

    Raises:
        UpstreamError: nothing, or nothing more, could be prepared; one sentence says why.
    """
    git = Git(checkout.absolute())
    base = checked(git, wishes.base)
    if not git.asks("ls-tree", base.sha, f"{MODELS.as_posix()}/"):
        raise UpstreamError(
            f"{wishes.base} of {checkout} has no {MODELS}: name a checkout of transformers, or another --base"
        )
    check_folder(wishes.out, checkout)
    python = find_interpreter(wishes.python, checkout)
    with worktrees(git, base, "base", "series") as places:
        untouched = Git(places["base"])
        families = chosen_families(untouched.folder, wishes.families)
        step("look at the interpreter")
        versions = probe(python, untouched.folder)
        tools = tools_of(untouched.folder)
        step("read the models")
        plan = make_plan(
            untouched.folder, families, wishes.codes, wishes.by, copies_follow=tools.has_converter, progress=progress
        )
        check_folder(wishes.out, checkout, tuple(group.name for group in plan.groups))
        for group in plan.groups:
            free_branch(git, branch_of(group.name))
        if not plan.groups:
            return Outcome((), {}, _idle(plan))
        step("run upstream's fixers on the base")
        shop = Workshop(
            base=base,
            untouched=untouched,
            tree=Git(places["series"]),
            python=python,
            tools=tools,
            plan=plan,
            drift=frozenset(drift(tools, python, untouched.folder, _modular(untouched.folder, plan))),
            include_unreproduced=wishes.include_unreproduced,
            jobs=wishes.jobs,
            progress=progress,
            step=step,
        )
        step("verify the base")
        shop.before([family for group in plan.groups for family in group.families])
        versions |= {"ckpt_surgery": __version__, "git": git.run("version").removeprefix("git version ")}
        made: list[Delivered] = []
        left_out: dict[str, str] = {}
        for group in plan.groups:
            done = draft(shop, group.units)
            left_out |= done.left_out
            if done.commits:
                made.append(_deliver(git, shop, group, done, _evidence(shop, group, done, wishes, versions), wishes))
                finished(made[-1])
    return Outcome(tuple(made), left_out, _idle(plan))


def _idle(plan: Plan) -> dict[str, str]:
    """The families that have findings and no repair."""
    found = {finding.family for finding in plan.findings}
    return {family: _BY_HAND for family in plan.idle if family in found}


def _modular(tree: Path, plan: Plan) -> list[str]:
    """The modular files of the families that are to change."""
    families = {family for group in plan.groups for family in group.families}
    files = (file for family in families for file in files_of(tree, family, "modular_*.py"))
    return sorted(file.relative_to(tree).as_posix() for file in files)


def _deliver(git: Git, shop: Workshop, group: Group, made: Draft, evidence: Evidence, wishes: Wishes) -> Delivered:
    """Judge a finished series, write its folder, and name it by its branch: all of it or nothing."""
    tip, branch, place = made.commits[-1].sha, evidence.branch, wishes.out / group.name
    before = free_branch(git, branch)
    try:
        with delivered(wishes.out, group.name) as folder:
            names = patches(git, shop.base, tip, folder)
            restore(shop.untouched)  # upstream's checkers and tests may leave what they like
            applies = same_after_am(shop.untouched, shop.base, tip, folder, names)
            evidence = judged(
                replace(evidence, patches=names),
                made.unreproduced,
                applies=applies,
                lost=made.lost,
                drifted=sorted(set(made.drifted)),
            )
            notice = write_documents(folder, _documents(shop.untouched.folder, evidence), place)
            set_branch(git, branch, tip)
    except BaseException:
        put_back(git, branch, tip, before)
        raise
    return Delivered(evidence, place, tuple(next_commands(evidence, place, git.folder)), notice)


def _documents(tree: Path, evidence: Evidence) -> dict[str, str]:
    template = tree / TEMPLATE
    return {
        "evidence.json": evidence.to_json(),
        "evidence.md": evidence_markdown(evidence),
        "siblings.md": siblings_markdown(evidence),
        BODY: pull_request_body(evidence, template.read_text("utf-8", "replace") if template.is_file() else None),
    }


def _evidence(shop: Workshop, group: Group, made: Draft, wishes: Wishes, versions: Mapping[str, str]) -> Evidence:
    """All that is known of a finished series; what becomes of it is not judged yet."""
    files = sorted({file for commit in made.commits for file in commit.files})
    codes = {code for commit in made.commits for code in commit.rules}
    return Evidence(
        group=group.name,
        branch=branch_of(group.name),
        base=shop.base.sha,
        base_name=shop.base.name,
        status="not ready",
        reasons=(),
        commits=tuple(made.commits),
        rows=made.rows,
        checks=_checks(shop, group, made),
        signatures=changed_signatures(shop.untouched.folder, shop.tree.folder, files),
        regressions=tuple(made.regressions),
        siblings=_siblings(shop, group, made, wishes),
        versions=versions,
        command=wishes.command,
        unsafe=tuple(made.unsafe),
        notes=group.notes,
        coordination=wishes.coordination,
        rules={rule.code: rule.summary for rule in RULES if rule.code in codes},
    )


def _checks(shop: Workshop, group: Group, made: Draft) -> tuple[Check, ...]:
    """Upstream's checkers, and its tests of every family in the series."""
    before, after = shop.untouched.folder, shop.tree.folder
    checks = check(
        shop.tools, shop.python, after, before, step=lambda name: shop.step(f"{group.name}: upstream's checker {name}")
    )
    if not (after / TESTS).is_dir():
        return (*checks, Check("upstream's tests", "not run", reason=f"this checkout has no {TESTS}"))
    tests = []
    for family in sorted(made.families):
        shop.step(f"{group.name}: upstream's tests of {family}")
        shown = [name for test in made.regressions if test.family == family for name in test.tests]
        tests.append(family_tests(family, before, after, shop.python, shown=shown))
        restore(shop.untouched)
        restore(shop.tree)
    return (*checks, *tests)


def _siblings(shop: Workshop, group: Group, made: Draft, wishes: Wishes) -> tuple[Sibling, ...]:
    """Every family with findings of the same rules, and why it is in this series or not."""
    codes = {code for commit in made.commits for code in commit.rules}
    findings = [finding for finding in shop.plan.findings if finding.code in codes]
    others = {family: other.name for other in shop.plan.groups if other != group for family in other.families}

    def reason(family: str) -> str:
        if family in made.families:
            return "changed in this series"
        if family in made.left_out:
            return f"left out: {made.left_out[family]}"
        if family in others and not wishes.include_unreproduced and not shop.faulty(family):
            return f"left out: {NO_FAULT}"
        if family in others:
            return f"belongs to the series {others[family]}, if its repair can be shown"
        if family in shop.plan.idle:
            return _BY_HAND
        return "not asked for" if wishes.families else "not asked for: the model is deprecated"

    found = []
    for family in sorted({finding.family for finding in findings}):
        own = [finding for finding in findings if finding.family == family]
        rules, places = sorted({f.code for f in own}), [f"{f.path}:{f.line}" for f in own]
        found.append(Sibling(family, tuple(rules), tuple(places), family in made.families, reason(family)))
    return tuple(found)
