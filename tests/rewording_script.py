"""The package's decisions without their wording, as JSON: `python -m tests.rewording_script WORDS HALF`.

WORDS is `usual` or `capitals`, HALF is `static` or `live`. Messages go to a separate list.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

Decisions = dict[str, Any]


def type_name(value: object) -> str:
    return type(value).__name__


def static(messages: list[str]) -> Decisions:
    """Collect findings and repairs of every sixth case of the rules, and the exit codes of the commands."""
    from ckpt_surgery.static.apply import apply
    from ckpt_surgery.static.check import check
    from tests.codemods.rules.test_fixtures import CHANGED, UNCHANGED, read
    from tests.codemods.tools import files_of, texts, tree

    decisions: Decisions = {}
    for case in (*UNCHANGED[::6], *CHANGED[::6]):
        with folder() as root:
            tree(root, files_of(read(case)[0])[1])
            findings = check([root], jobs=1, cache=False).findings
            messages += [finding.message for finding in findings]
            result = apply([root], unsafe=".unsafe." in case.name, jobs=1, cache=False)
            messages += [*map(str, result.notes), *map(str, result.problems)]
            decisions[f"{case.parent.name}/{case.name}"] = {
                "findings": [
                    (
                        f.code,
                        Path(f.path).name,
                        f.line,
                        f.column,
                        f.class_name,
                        f.applicability,
                        [*map(type_name, f.repairs)],
                    )
                    for f in findings
                ],
                "texts": texts(root),
                "left": [(finding.code, finding.line, finding.applicability) for finding in result.left],
                "counts": (len(result.notes), len(result.problems), len(result.changes)),
            }
    return decisions | commands(messages)


def commands(messages: list[str]) -> Decisions:
    """Return the exit codes of the commands of the static half."""
    from ckpt_surgery.cli.main import main
    from tests.codemods.snippets import INLINE
    from tests.codemods.tools import FOO, tree

    calls = [
        ["check", "."],
        ["check", ".", "--exit-zero"],
        ["check", ".", "--statistics"],
        ["check", "nowhere.py"],
        ["check", "broken.py"],
        ["check", ".", "--select", "CKPT999"],
        ["check", ".", "--select", "CKPT003", "--ignore", "CKPT003"],
        ["rule", "CKPT003"],
        ["rule", "CKPT0"],
        ["apply", "--check", "models"],
        ["apply", "--diff", "models"],
        ["apply", "models"],
        ["apply", "--check", "models"],
        ["pr", "--all", "--checkout", "."],
    ]
    codes: Decisions = {}
    with folder() as root, contextlib.chdir(root):
        tree(root, {FOO: INLINE, "broken.py": "def (\n"})
        for number, call in enumerate(calls):
            with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as error:
                codes[f"{number} {' '.join(call)}"] = main(call)
            messages += [out.getvalue(), error.getvalue()]
    return codes


def live(messages: list[str]) -> Decisions:
    """Collect verdicts and causes of every planted fault, and what `wrap_blocks` does to the same models."""
    from ckpt_surgery import verify, wrap_blocks
    from ckpt_surgery.errors import CkptSurgeryError
    from tests.measure.test_verify import FAULTS, HEALTHY
    from tests.measure.toys import values

    gc.freeze()  # a surgery collects, and has no need to pass over all that has been imported
    decisions: Decisions = {}
    for case in (*HEALTHY, *FAULTS):
        build = cast(Callable[[], Any], case.values[0])
        report = verify(build(), values())
        messages += [str(report)]
        decisions[f"{case.id}: verify"] = [
            (mode.mode, mode.outcomes, [(f.level, f.subjects, f.rule, bool(f.cause)) for f in mode.faults])
            for mode in report.modes
        ]
        for reentrant in (False, True):
            try:
                surgery = wrap_blocks(build(), use_reentrant=reentrant)
            except CkptSurgeryError as error:
                messages.append(str(error))
                decided = type(error).__name__
            else:
                messages.append(str(surgery))
                decided = f"{[block.name for stack in surgery.stacks for block in stack.blocks]}"
            decisions[f"{case.id}: wrap_blocks, {reentrant}"] = decided
    return decisions


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Make a temporary folder."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


if __name__ == "__main__":
    words, half = sys.argv[1:]
    if words == "capitals":
        from tests.rewording import install

        install()
    collected: list[str] = []
    result = {"static": static, "live": live}[half](collected)
    json.dump({"decisions": result, "messages": collected}, sys.stdout)
