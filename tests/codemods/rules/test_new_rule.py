"""A contributor's new rule: one file in `codemods/rules/`, and one more in `codemods/providers/` for a new fact."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ckpt_surgery
from ckpt_surgery.codemods import discover
from ckpt_surgery.codemods.providers import declared_facts
from tests.codemods.snippets import PLAIN
from tests.codemods.tools import FOO, tree

ROOT = Path(__file__).parents[3]
PACKAGE = Path(ckpt_surgery.__file__).parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def shown(opening: str) -> str:
    """Return the block of the page that begins so, from its first line on."""
    match = re.search(rf"^(`{{3,}})\w+{opening}.*?^\1$", PAGE, re.DOTALL | re.MULTILINE)
    assert match, f"the page shows no block that begins with {opening!r}"
    return "\n".join([*match[0].split("\n")[1:-1], ""])


RULE = shown(r' title="codemods/rules/unnamed_arguments\.py"')
FACT = shown(r' title="codemods/providers/indexed_names\.py"')
ASKING = shown(r"\n +names = ref\.cls\[INDEXED\]")
CASE = shown(r"\n# CKPT900 ")
IMPORT = "from ckpt_surgery.codemods.finding import Applicability, Declaration, Finding, RepairKind, RuleContext\n"
RULE_ON_FACT = RULE.replace(
    IMPORT, f"{IMPORT}from ckpt_surgery.codemods.providers.indexed_names import INDEXED\n"
).replace('            if forward and any(parameter.kind == "*" for parameter in forward.params):\n', ASKING)
SIGNATURE = "self, hidden_states, attention_mask=None, past_key_values=None):\n        return self."
MODEL = PLAIN.replace(SIGNATURE, SIGNATURE.replace("attention_mask=None, past_key_values=None", "*args"))
ASKED = """
import json
from ckpt_surgery.codemods import RULES, rule_of
from ckpt_surgery.static.commands import COMMANDS

rule = rule_of("CKPT900")
print(json.dumps([rule.name, rule.summary, rule.commit, RULES[-1].code, [*COMMANDS]]))
"""


def package_with(folder: Path, added: dict[str, str]) -> Path:
    """Copy the package with these files added to `codemods/`."""
    shutil.copytree(PACKAGE, folder / "ckpt_surgery", ignore=shutil.ignore_patterns("__pycache__"))
    tree(folder / "ckpt_surgery" / "codemods", added)
    return folder


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return package_with(tmp_path_factory.mktemp("checkout"), {"rules/unnamed_arguments.py": RULE})


def run(copy: Path, *arguments: str, folder: Path, **environment: str) -> str:
    """Run Python on the copy of the package; it has to exit with 0 or, with findings, with 1."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(copy), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_the_registry_and_the_libcst_commands_hold_it(copy: Path, tmp_path: Path) -> None:
    name, summary, commit, last, commands = json.loads(run(copy, "-c", ASKED, folder=tmp_path))
    assert (name, summary) == ("unnamed_arguments", "A forward takes a bare `*args`.")
    assert commit is None
    assert last == "CKPT900", "rules are sorted by code"
    assert "UnnamedArguments" not in commands, "it repairs nothing"


def test_the_rule_command_lists_and_explains_it(copy: Path, tmp_path: Path) -> None:
    assert "CKPT900 unnamed_arguments\n" in run(copy, "-m", "ckpt_surgery", "rule", folder=tmp_path)
    shown = run(copy, "-m", "ckpt_surgery", "rule", "CKPT900", folder=tmp_path)
    assert shown.startswith("CKPT900 unnamed_arguments\n\nA forward takes")


def test_check_finds_with_it_and_apply_leaves_it_to_a_person(copy: Path, tmp_path: Path) -> None:
    root = tree(tmp_path, MODEL)
    command = ["-m", "ckpt_surgery", "check", "--select", "CKPT900", "--output-format", "json", "models"]
    (finding,) = json.loads(run(copy, *command, folder=root))["findings"]
    line = MODEL[: MODEL.index("class FooLayer")].count("\n") + 1
    assert (finding["code"], finding["line"], finding["message"]) == ("CKPT900", line, "FooLayer takes *args")
    summary = run(copy, "-m", "ckpt_surgery", "apply", "--select", "CKPT900", "models", folder=root)
    assert "CKPT900 unnamed_arguments: 0 repaired, left: 1 to be repaired by hand" in summary
    assert (root / FOO).read_text(encoding="utf-8") == MODEL


def test_its_case_tells_what_it_reports(copy: Path, tmp_path: Path) -> None:
    checked = "import pathlib, sys; from tests.codemods.tools import check_noop; check_noop(pathlib.Path.cwd(), {!r})"
    told, silent = CASE, CASE.replace("# CKPT900 unsafe | class FooLayer | FooLayer takes *args\n", "")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(copy), str(ROOT)])}
    for folder, (case, said) in enumerate(
        {told: "", silent: "not expected:\n# CKPT900 unsafe | class FooLayer"}.items()
    ):
        (tmp_path / str(folder)).mkdir()
        command = [sys.executable, "-c", checked.format(case)]
        done = subprocess.run(
            command, cwd=tmp_path / str(folder), env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == bool(said)
        assert said in done.stderr


def test_a_rule_with_a_new_fact_is_two_files(tmp_path: Path) -> None:
    added = {"rules/unnamed_arguments.py": RULE_ON_FACT, "providers/indexed_names.py": FACT}
    package = package_with(tmp_path / "copy", added)
    indexed = MODEL.replace("self.self_attn(hidden_states)", "self.self_attn(hidden_states, args[0])", 1)
    names = [f"{name}{number}" for name in ("read", "handed_on") for number in range(20)]
    texts = {name: (indexed if name.startswith("read") else MODEL).replace("Foo", name.title()) for name in names}
    root = tree(tmp_path / "root", {f"models/{name}/modeling_{name}.py": text for name, text in texts.items()})
    wanted = {f"models/read{number}/modeling_read{number}.py" for number in range(20)}
    cache = tmp_path / "cache"

    def found(*options: str) -> set[str]:
        command = ("-m", "ckpt_surgery", "check", "--select", "CKPT900", "--output-format", "json", *options, "models")
        report = json.loads(run(package, *command, folder=root, CKPT_SURGERY_CACHE=str(cache)))
        return {finding["path"] for finding in report["findings"]}

    assert found("--jobs", "1", "--no-cache") == wanted
    assert found("--jobs", "2", "--no-cache") == wanted
    assert not cache.exists()
    assert found("--jobs", "1") == wanted
    entries = {path for path in cache.rglob("*") if path.is_file()}
    tree(root, {"models/more/modeling_more.py": indexed.replace("Foo", "More")})
    assert found("--jobs", "1") == wanted | {"models/more/modeling_more.py"}
    new = {path for path in cache.rglob("*") if path.is_file()} - entries
    assert len(new) == 2, "the new file and the new result: what the others say comes from the cache"


def test_two_facts_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = FACT.replace("INDEXED", "READ_BY_NUMBER")
    tree(tmp_path, {"two_facts/__init__.py": "", "two_facts/indexed.py": FACT, "two_facts/numbers.py": again})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="indexed and numbers of two_facts both declare a fact 'indexed'"):
        declared_facts("two_facts")


def test_a_module_may_import_the_fact_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = "from one_fact.indexed import INDEXED\n"
    tree(tmp_path, {"one_fact/__init__.py": "", "one_fact/indexed.py": FACT, "one_fact/user.py": user})
    monkeypatch.syspath_prepend(tmp_path)
    of_files, of_classes = declared_facts("one_fact")
    assert (of_files, [fact.name for fact in of_classes]) == ((), ["indexed"])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("no_rule", '"""Nothing declared."""\n', "no_rule declares no rule: it needs RULE = Declaration"),
        ("same_code", RULE, "the rules (other|same_code) and (other|same_code) both have the code CKPT900"),
    ],
)
def test_a_file_that_declares_no_rule_or_a_code_twice_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, message: str
) -> None:
    package = f"rules_with_{name}"
    tree(tmp_path, {f"{package}/__init__.py": "", f"{package}/other.py": RULE, f"{package}/{name}.py": text})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises((TypeError, ValueError), match=message):
        discover(package)
