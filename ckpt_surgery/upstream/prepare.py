"""`prepare`: a checkout and what is wished for it in, series with their evidence out.

The order of the work, and what becomes of a checkout when it ends early, are decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ckpt_surgery import __version__
from ckpt_surgery.source.results import Progress
from ckpt_surgery.upstream.body import next_commands, pull_request_body, siblings_markdown
from ckpt_surgery.upstream.checks import check, drift, tools_of
from ckpt_surgery.upstream.delivery import BODY, EVIDENCE, check_folder, delivered, write_documents
from ckpt_surgery.upstream.errors import UpstreamError
from ckpt_surgery.upstream.evidence_page import evidence_markdown
from ckpt_surgery.upstream.git import Git, checked, free_branch, patches, same_after_am, set_branch, worktrees
from ckpt_surgery.upstream.interpreter import find_interpreter, probe
from ckpt_surgery.upstream.judge import judged
from ckpt_surgery.upstream.layout import MODELS, TEMPLATE, TESTS, files_of
from ckpt_surgery.upstream.plan import Group, Grouping, Plan, chosen_families, make_plan
from ckpt_surgery.upstream.regression import family_tests
from ckpt_surgery.upstream.results import Check, Evidence, Sibling
from ckpt_surgery.upstream.series import Draft, Workshop, draft
from ckpt_surgery.upstream.signatures import changed_signatures
from codemods import RULES

Step = Callable[[str], None]
_BY_HAND = "no codemod has a repair for it: work for a person"


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
    command: str = "ckpt_surgery pr"
    """The command line that asks for the same again, without a path of this machine."""


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
    step: Step = lambda _: None,
    finished: Callable[[Delivered], None] = lambda _: None,
) -> Outcome:
    """Make the series that `wishes` asks for, each on a branch `ckpt-surgery/GROUP` and in a folder `out/GROUP`.

    The working tree, the index, HEAD and every other branch of the checkout stay as they are. A series that is
    finished when something goes wrong is kept, everything else that was made goes.

    Args:
        checkout: the top of a git checkout of transformers.
        progress: called as models are read and run.
        step: told in a few words what is done now.
        finished: called with each series that is done.

    Raises:
        UpstreamError: nothing, or nothing more, could be prepared; one sentence says why.
    """
    git = Git(checkout.absolute())
    base = checked(git, wishes.base)
    if not git.asks("ls-tree", base.sha, f"{MODELS.as_posix()}/"):
        raise UpstreamError(f"{wishes.base} of {checkout} has no {MODELS}: it is no checkout of transformers")
    check_folder(wishes.out, checkout)
    python = find_interpreter(wishes.python, checkout)
    with worktrees(git, base, "base", "series") as places:
        untouched, tree = Git(places["base"]), Git(places["series"])
        families = chosen_families(untouched.folder, wishes.families)
        step("look at the interpreter")
        versions = probe(python, untouched.folder)
        tools = tools_of(untouched.folder)
        step("read the models")
        plan = make_plan(
            untouched.folder,
            families,
            wishes.codes,
            wishes.by,
            copies_follow=tools.has_converter,
            progress=progress,
        )
        check_folder(wishes.out, checkout, tuple(group.name for group in plan.groups))
        for group in plan.groups:
            free_branch(git, _branch(group), base)
        if not plan.groups:
            return Outcome((), {}, _idle(plan))
        step("run upstream's fixers on the base")
        drifted = frozenset(drift(tools, python, untouched.folder, _modular(untouched.folder, plan)))
        shop = Workshop(
            base, untouched, tree, python, tools, plan, drifted, wishes.include_unreproduced, wishes.jobs, progress
        )
        step("verify the base")
        shop.before([family for group in plan.groups for family in group.families])
        known = {**versions, "ckpt_surgery": __version__, "git": git.run("version").removeprefix("git version ")}
        made: list[Delivered] = []
        left_out: dict[str, str] = {}
        for group in plan.groups:
            done = draft(shop, group.units, step)
            left_out |= done.left_out
            if done.commits:
                made.append(_deliver(git, shop, group, done, wishes, known, step))
                finished(made[-1])
    return Outcome(tuple(made), left_out, _idle(plan))


def _idle(plan: Plan) -> dict[str, str]:
    """The families that have faults and no repair."""
    faulty = {fault.family for fault in plan.faults}
    return {family: _BY_HAND for family in plan.idle if family in faulty}


def _modular(tree: Path, plan: Plan) -> list[str]:
    """The modular files of the families that are to change."""
    families = {family for group in plan.groups for family in group.families}
    files = (file for family in families for file in files_of(tree, family, "modular_*.py"))
    return sorted(file.relative_to(tree).as_posix() for file in files)


def _branch(group: Group) -> str:
    return f"ckpt-surgery/{group.name}"


def _deliver(
    git: Git, shop: Workshop, group: Group, made: Draft, wishes: Wishes, versions: Mapping[str, str], step: Step
) -> Delivered:
    """Check the finished series, write its folder, and name it by its branch."""
    evidence = _evidence(shop, group, made, wishes, versions, step)
    tip = made.commits[-1].sha
    place = wishes.out / group.name
    with delivered(wishes.out, group.name) as folder:
        names = patches(git, shop.base, tip, folder)
        applies = same_after_am(shop.untouched, shop.base, tip, folder, names)
        evidence = judged(replace(evidence, patches=names), made, applies=applies)
        template = shop.untouched.folder / TEMPLATE
        documents = {
            EVIDENCE: evidence.to_json(),
            "evidence.md": evidence_markdown(evidence),
            "siblings.md": siblings_markdown(evidence),
            BODY: pull_request_body(evidence, template.read_text(encoding="utf-8") if template.is_file() else None),
        }
        notice = write_documents(folder, documents, place)
        set_branch(git, evidence.branch, shop.base, tip)
    return Delivered(evidence, place, tuple(next_commands(evidence, place, git.folder)), notice)


def _evidence(
    shop: Workshop, group: Group, made: Draft, wishes: Wishes, versions: Mapping[str, str], step: Step
) -> Evidence:
    files = sorted({file for commit in made.commits for file in commit.files})
    step(f"{group.name}: upstream's checkers")
    checks = list(
        check(
            shop.tools,
            shop.python,
            shop.tree.folder,
            shop.untouched.folder,
            step=lambda name: step(f"{group.name}: upstream's checker {name}"),
        )
    )
    if not (shop.tree.folder / TESTS).is_dir():
        checks.append(Check("upstream's tests", "not run", reason=f"this checkout has no {TESTS}"))
    for family in sorted(made.families) if (shop.tree.folder / TESTS).is_dir() else ():
        step(f"{group.name}: upstream's tests of {family}")
        checks.append(family_tests(family, shop.untouched.folder, shop.tree.folder, shop.python))
    codes = {code for commit in made.commits for code in commit.rules}
    return Evidence(
        group=group.name,
        branch=_branch(group),
        base=shop.base.sha,
        base_name=shop.base.name,
        status="not ready",
        reasons=(),
        commits=tuple(made.commits),
        rows=made.rows,
        checks=tuple(checks),
        signatures=changed_signatures(shop.untouched.folder, shop.tree.folder, files),
        regressions=tuple(made.regressions),
        siblings=_siblings(shop.plan, group, made, wishes),
        versions=versions,
        command=wishes.command,
        unsafe=tuple(made.unsafe),
        notes=shop.plan.notes,
        coordination=wishes.coordination,
        rules={rule.code: rule.summary for rule in RULES if rule.code in codes},
    )


def _siblings(plan: Plan, group: Group, made: Draft, wishes: Wishes) -> tuple[Sibling, ...]:
    """Every family with findings of the same rules, and why it is in this series or not."""
    codes = {code for commit in made.commits for code in commit.rules}
    others = {family: other.name for other in plan.groups if other != group for family in other.families}
    found = []
    for family in sorted({fault.family for fault in plan.faults if fault.code in codes}):
        faults = [fault for fault in plan.faults if fault.family == family and fault.code in codes]
        if family in made.families:
            reason = "changed in this series"
        elif family in made.left_out:
            reason = f"left out: {made.left_out[family]}"
        elif family in others:
            reason = f"asked for with this series, as the series {others[family]}"
        elif family in plan.idle:
            reason = _BY_HAND
        else:
            reason = "not asked for" + ("" if wishes.families else ": the model is deprecated")
        rules = tuple(sorted({fault.code for fault in faults}))
        places = tuple(f"{fault.path}:{fault.line}" for fault in faults)
        found.append(Sibling(family, rules, places, family in made.families, reason))
    return tuple(found)
