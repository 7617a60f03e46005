"""Render evidence.md, the evidence for one series as a reviewer reads it, and siblings.md.

The pages depend only on the data: they have no times and no random order. The output of commands that passed is in
evidence.json alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from ckpt_surgery.text import bullets, code, console, folded, markdown_table, paragraphs, plural, prose, titled
from ckpt_surgery.upstream.evidence import markdown
from ckpt_surgery.upstream.evidence.results import (
    CheckerResult,
    CheckStatus,
    Commit,
    Evidence,
    RegressionTest,
)


def evidence_markdown(evidence: Evidence) -> str:
    """Return the page evidence.md. The order of the evidence's mappings does not matter."""
    about = [
        f"branch: {code(evidence.branch)}, {plural(len(evidence.commits), 'commit')}",
        f"base: {code(evidence.base_name)} at {code(evidence.base)}",
        f"agreed on in: {prose(evidence.coordination) if evidence.coordination else 'no issue was named'}",
    ]
    models = markdown.folded_names(evidence.models, "model class", "model classes")
    unexplained = [
        f"{code(row.model)} ({row.mode}: {', '.join(row.after)})"
        for row in evidence.rows
        if row.after and not row.faults_after and not row.problem
    ]
    remaining = [markdown.fault_list((row, row.faults_after) for row in evidence.rows)]
    remaining += [f"`verify` gave no details for {', '.join(unexplained)}."] if unexplained else []
    not_imported = [
        f"{code(commit.sha[:12])} has a module that cannot be imported:\n\n{markdown.run_block(commit.imported)}"
        for commit in evidence.commits
        if commit.imported and not commit.imported.ok
    ]
    files = markdown.folded_names(evidence.files, "file")
    page = paragraphs(
        f"# Evidence for {code(evidence.group)}: {evidence.status}",
        markdown.status_lines(evidence),
        titled("The series:", bullets(about)),
        titled("## Before and after", paragraphs(markdown.before_and_after(evidence.rows), models)),
        titled("## Regression tests", _regressions(evidence.regressions)),
        markdown.breaking_changes(evidence, "## "),
        titled("## Upstream's checkers and tests", _checks(evidence.checks)),
        titled("## Faults before", markdown.fault_list((row, row.faults_before) for row in evidence.rows)),
        titled("## Faults that remain", paragraphs(*remaining)),
        titled("## Commits", paragraphs(markdown.commits_table(evidence), *not_imported, files)),
        titled("## What upstream's converter and checkers changed", _tool_changes(evidence.commits)),
        titled("## Notes", bullets(map(prose, evidence.notes))),
        markdown.slow_tests(evidence),
        titled("## Reproduce the series and its measurements", _reproduction(evidence)),
    )
    return f"{page}\n"


def siblings_markdown(evidence: Evidence) -> str:
    """Return the page siblings.md: the findings of the same rules in all families, those of this series first."""
    siblings = sorted(evidence.siblings, key=lambda sibling: not sibling.included)
    included = sum(sibling.included for sibling in siblings)
    lines = []
    for sibling in siblings:
        inside, rules = "yes" if sibling.included else "no", " ".join(sibling.rules)
        lines.append([code(sibling.family), inside, rules, markdown.code_list(sibling.places), prose(sibling.reason)])
    table = markdown_table(["family", "in this series", "rules", "places", "reason"], lines)
    page = paragraphs(
        f"# The same pattern elsewhere: {code(evidence.group)}",
        f"Static findings of the rules of this series in the base, {code(evidence.base_name)} at "
        f"{code(evidence.base)}: {plural(included, 'family', 'families')} in this series, "
        f"{len(siblings) - included} outside it.",
        markdown.rules_list(evidence),
        markdown.folded_if_long(table, len(lines), "family", "families") if lines else "",
    )
    return f"{page}\n"


def _regressions(regressions: Sequence[RegressionTest]) -> str:
    """Return the table, the failing runs in full, because they are the proof, and the last line of passing ones."""
    passed, failed = [], []
    for test in regressions:
        for tree, ran in (("base", test.before), ("series", test.after)):
            if ran and ran.ok:
                last = prose((ran.output.rstrip().splitlines() or ["passed"])[-1])
                passed.append(f"{test.family} on the {tree}: {code(ran.command)}: {last}")
            elif ran:
                failed.append(markdown.folded_run(f"{test.family} on the {tree}", ran))
    passing = markdown.folded_if_long(bullets(passed), len(passed), "run")
    return paragraphs(markdown.regressions_table(regressions), *failed, passing)


def _checks(checks: Iterable[CheckerResult]) -> str:
    ordered = markdown.failures_first(checks)
    outputs = []
    for check in ordered:
        if check.ran and check.ran == check.before and check.status is not CheckStatus.OK:
            outputs.append(markdown.folded_run(f"{check.name} on the series and on the base", check.ran))
        elif check.status is not CheckStatus.OK:
            runs = (("series", check.ran), ("base", check.before))
            outputs += [markdown.folded_run(f"{check.name} on the {tree}", ran) for tree, ran in runs if ran]
    passed = [check.name for check in ordered if check.status is CheckStatus.OK]
    names = folded(f"{len(passed):,} passed", markdown.code_list(passed)) if passed else ""
    return paragraphs(markdown.checks_table(ordered), *outputs, names)


def _tool_changes(commits: Sequence[Commit]) -> str:
    """Return, for each commit, the files that upstream's tools changed, and the runs of these tools that failed."""
    parts = []
    for commit in commits:
        titles = {
            "written by the converter": commit.regenerated,
            "changed only by the other checkers": commit.checkers,
        }
        changes = [f"{title}: {markdown.code_list(files)}" for title, files in titles.items() if files]
        runs = [markdown.folded_run(ran.command, ran) for ran in commit.fixes if not ran.ok]
        if changes or runs:
            parts += [f"{code(commit.sha[:12])}, {prose(commit.subject)}:", bullets(changes), *runs]
    return paragraphs(*parts)


def _reproduction(evidence: Evidence) -> str:
    parts = ["To make the same series again:", console([evidence.command])]
    if evidence.patches:
        switch = shlex.join(["git", "switch", "--create", evidence.branch, evidence.base])
        patches = shlex.join(["git", "am", *evidence.patches])
        parts += ["To apply its patches, at the top of a checkout:", console([switch, patches])]
    models: dict[str, dict[str, None]] = {}
    for row in evidence.rows:
        models.setdefault(row.family, {})[row.model.partition(" (")[0]] = None  # without the variant
    verify = [f"PYTHONPATH=src ckpt_surgery verify {shlex.join(names)}" for _, names in sorted(models.items())]
    again = "To repeat the measurements, at the top of a checkout without the patches and of one with them:"
    versions = ", ".join(f"{code(name)} {prose(version)}" for name, version in sorted(evidence.versions.items()))
    parts += [titled(again, console(verify) if verify else ""), f"Versions: {versions}." if versions else ""]
    return paragraphs(*parts)
