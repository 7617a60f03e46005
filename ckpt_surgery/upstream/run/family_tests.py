"""All of upstream's tests of a family, run on the series and, if some fail there, on the base."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ckpt_surgery.text import some
from ckpt_surgery.upstream.evidence.results import CheckerResult, CheckStatus
from ckpt_surgery.upstream.layout import TESTS
from ckpt_surgery.upstream.run.interpreter import PythonInterpreter
from ckpt_surgery.upstream.run.pytest_run import BAD, PytestOutcome, run_pytest
from ckpt_surgery.upstream.run.temporary_edits import model_test_files, tests_of_series

TIMEOUT = 3600.0
"""Seconds for one run of all tests of a family."""


def family_tests(
    family: str, base: Path, series: Path, python: PythonInterpreter, *, shown: Collection[str] = ()
) -> CheckerResult:
    """Run all of upstream's tests of a family on the series; those that fail are run on the base too.

    Upstream skips its slow tests by itself. The result is `FAILED_BEFORE` if each test that fails on the series also
    fails on the base.

    Args:
        shown: the tests that show the repair. They may not fail, whatever they do on the base.

    Raises:
        UpstreamError: the interpreter cannot be started.
    """
    folder = f"{TESTS}/{family}"
    if not (series / folder).is_dir():
        return CheckerResult(folder, CheckStatus.NOT_RUN, reason=f"the checkout has no {folder}")
    options = ("--continue-on-collection-errors",)
    after = run_pytest(python, series, [folder], options=options, timeout=TIMEOUT)
    bad = after.ids(*BAD)
    if after.problem or not (bad or after.ids(PytestOutcome.PASSED)):
        return CheckerResult(folder, CheckStatus.NOT_RUN, after.ran, reason=after.problem or "all tests are skipped")
    if not bad and not after.aborted:
        if after.ran.ok:
            return CheckerResult(folder, CheckStatus.OK, after.ran)
        reason = f"pytest ended early, with exit code {after.ran.code}"
        return CheckerResult(folder, CheckStatus.NOT_RUN, after.ran, reason=reason)
    with tests_of_series(base, series, model_test_files(series, family)):
        targets = [folder] if after.aborted else bad
        before = run_pytest(python, base, targets, options=options, timeout=TIMEOUT)
    crash = ["pytest itself, which stops with an internal error"] if after.aborted else []
    new = [name for name in bad if name in shown or before.outcome(name) not in BAD]
    new += crash if not before.aborted else []
    if new:
        return CheckerResult(folder, CheckStatus.FAILED, after.ran, before.ran, f"on the series alone: {some(new)}")
    reason = f"on the base as well: {some([*crash, *bad])}"
    return CheckerResult(folder, CheckStatus.FAILED_BEFORE, after.ran, before.ran, reason)
