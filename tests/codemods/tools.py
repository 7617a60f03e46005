"""How a case of a rule is written and run.

To add a case, add one file to `tests/codemods/rules/<rule>/`; no test code is needed. Its name says what is true:

- `<what_is_true>.noop.py` holds what `apply` leaves as it is;
- `<what_is_true>.diff` holds what it changes. Every line begins with ` ` (both sides), `-` (before) or `+` (after);
- `<what_is_true>.unsafe.diff` (or `.unsafe.noop.py`) is run with the unsafe repairs.

A case holds what it is about and stands on a prelude for the rest. This one calls a block by keyword:

    -# CKPT003 safe | layer(hidden_states=hidden_states) | `hidden_states` by keyword
     # prelude: gcl

     class FooModel:
         def forward(self, hidden_states, attention_mask=None):
             for layer in self.layers:
    -            hidden_states = layer(hidden_states=hidden_states)
    +            hidden_states = layer(hidden_states)
             return hidden_states

The first lines are the findings: code, applicability, part of the line at fault and, if wanted, part of the message.
Safe and unsafe findings must be complete, before (` ` and `-`) and after (` ` and `+`); information and unknowns need
not be. Line numbers in messages are those of the joined file.

`# prelude: <name>` names a file of `tests/codemods/preludes/`:

- `plain`: a model with a stack of plain blocks; `gcl`: the same with GradientCheckpointingLayer. A repair that
  only adds the base class and its import is `-# prelude: plain` and `+# prelude: gcl`;
- `cached`: as `gcl`, and the block takes `past_key_values`;
- `ddp`, `collectives`: the imports of a training script.

What the case gives takes the place of what has the same name in the prelude: imports as a whole, classes member by
member. `class FooModel:` keeps the prelude's bases; `class FooLayer(FooBase): ...` keeps its members. What is new goes
before the next class or function that the prelude has too, or to the end; `class FooModel: ...` names such a place.

A case of several files begins each with `# file: models/bar/modeling_bar.py`, and each may stand on a prelude; a
launcher's configuration is a file too (`# file: configs/zero3.yaml`). Without
a prelude and without that line a case is `models/foo/modeling_foo.py`, taken as it is.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from ckpt_surgery.codemods.facts.launch_facts import CONFIGURATION_SUFFIXES
from ckpt_surgery.codemods.finding import Applicability, Finding
from ckpt_surgery.static.apply import apply
from ckpt_surgery.static.check import check
from ckpt_surgery.static.results import ApplyResult
from tests.codemods.preludes import joined, prelude

FOO = "models/foo/modeling_foo.py"
_FILE = re.compile(r"^# file: (\S+)\n", re.M)
_PRELUDE = re.compile(r"# prelude: (\w+)\n")
_EXPECTED = re.compile(r"# (CKPT\d+) (safe|unsafe|info|unknown)(?: \| ([^|\n]*))?(?: \| ([^\n]*))?\n")
_FAULTS = (Applicability.SAFE, Applicability.UNSAFE)


@dataclass(frozen=True, slots=True)
class Expected:
    """A finding that a case lists: its code, applicability, part of its line, part of its message."""

    code: str
    applicability: str
    line: str
    message: str

    def fits(self, finding: Finding, line: str) -> bool:
        """Tell whether a finding on a line with this text is the expected one."""
        return (
            (finding.code, finding.applicability.value) == (self.code, self.applicability)
            and self.line in line
            and self.message in finding.message
        )


def sides(diff: str) -> tuple[str, str]:
    """Split a diff that shows every line into before and after; an unmarked line raises ValueError."""
    lines = diff.splitlines()
    if unmarked := [line for line in lines if line[:1] not in ("", " ", "-", "+")]:
        raise ValueError(f"neither ' ', '-' nor '+' begins {unmarked[0]!r}")
    before, after = ("".join(f"{line[1:]}\n" for line in lines if line[:1] != mark) for mark in "+-")
    return before, after


def files_of(case: str) -> tuple[list[Expected], dict[str, str]]:
    """Return the findings that a case expects, and its files by path below the tree's top."""
    expected: list[Expected] = []
    while match := _EXPECTED.match(case):
        code, applicability, line, message = (part or "" for part in match.groups())
        expected.append(Expected(code, applicability, line.strip(), message.strip()))
        case = case[match.end() :]
    first, *rest = _FILE.split(case.lstrip("\n"))
    path, text = _on_prelude(FOO, first)
    files = {path: text} if text.strip() else {}
    return expected, files | {
        path: _on_prelude(path, text)[1] for path, text in zip(rest[::2], rest[1::2], strict=True)
    }


def _on_prelude(path: str, text: str) -> tuple[str, str]:
    """Join the text onto the prelude it names, if any; return the path and the text."""
    match = _PRELUDE.match(text)
    if match is None:
        return path, text
    _, path, base = _FILE.split(prelude(match[1]))
    return path, joined(base, text[match.end() :])


def tree(root: Path, files: dict[str, str] | str) -> Path:
    """Write files below `root` byte for byte; a single text is that of the model foo."""
    for name, text in (files if isinstance(files, dict) else {FOO: files}).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return root


def texts(root: Path) -> dict[str, str]:
    """Read every Python and configuration file below `root`, by path."""
    files = [path for path in sorted(root.rglob("*")) if path.suffix in (".py", *CONFIGURATION_SUFFIXES)]
    return {path.relative_to(root).as_posix(): path.read_bytes().decode() for path in files}


def found(root: Path, code: str = "") -> list[Finding]:
    """Return what `check` finds, of one rule or of all."""
    return [finding for finding in check([root], jobs=1).findings if finding.code.startswith(code)]


def repair(root: Path, *, unsafe: bool = False, select: tuple[str, ...] = ()) -> ApplyResult:
    """Run `apply` and, again, on what it wrote: nothing may change then, and every file must parse."""
    result = apply([root], unsafe=unsafe, select=select, jobs=1)
    after = texts(root)
    for name, text in after.items():
        if name.endswith(".py"):
            ast.parse(text, name)
    again = apply([root], unsafe=unsafe, select=select, jobs=1)
    assert [change.diff for change in again.changes] == [], "a second run changes it again"
    assert texts(root) == after
    return result


def check_noop(root: Path, case: str, *, unsafe: bool = False) -> ApplyResult:
    """Assert that `apply` leaves the case as it is, with the findings it lists."""
    return check_transformed(root, case, case, unsafe=unsafe)


def check_transformed(
    root: Path, before: str, after: str, *, unsafe: bool = False, select: tuple[str, ...] = ()
) -> ApplyResult:
    """Assert that `apply` turns `before` into `after`, which parses, settles and has no safe finding left.

    Both have the findings that they list.
    """
    expected, files = files_of(before)
    expected_after, wanted = files_of(after)
    tree(root, files)
    result = repair(root, unsafe=unsafe, select=select)
    assert result.problems == ()
    assert result.notes == ()
    compare(list(result.findings), expected, files, root)
    written = texts(root)
    assert written.keys() == wanted.keys()
    for name, text in wanted.items():
        assert written[name] == text
    remaining = list(check([root], select=select, jobs=1).findings)
    assert [finding.message for finding in remaining if finding.applicability is Applicability.SAFE] == []
    compare(remaining, expected_after, wanted, root)
    return result


def compare(findings: list[Finding], expected: list[Expected], files: dict[str, str], root: Path) -> None:
    """Assert that each expected finding is there and that no other fault is."""
    unmatched = list(findings)
    for expectation in expected:
        fitting = [finding for finding in unmatched if expectation.fits(finding, _line(finding, files, root))]
        assert fitting, f"{expectation} is not among\n{_shown(unmatched, files, root)}"
        unmatched.remove(fitting[0])
    faults = [finding for finding in unmatched if finding.applicability in _FAULTS]
    assert not faults, f"not expected:\n{_shown(faults, files, root)}"


def _shown(findings: list[Finding], files: dict[str, str], root: Path) -> str:
    lines = [
        f"# {finding.code} {finding.applicability.value} | {_line(finding, files, root).strip()} | {finding.message}"
        for finding in findings
    ]
    return "\n".join(lines)


def _line(finding: Finding, files: dict[str, str], root: Path) -> str:
    return files[Path(finding.path).relative_to(root).as_posix()].split("\n")[finding.line - 1]
