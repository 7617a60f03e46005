"""The package's rules, and the declarations in their files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ckpt_surgery.codemods import RULES, Rule, rule_of, rules
from ckpt_surgery.codemods.facts.syntax import Span
from ckpt_surgery.codemods.finding import Applicability, Declaration, RepairKind, RuleContext
from ckpt_surgery.codemods.tree.source_tree import SourceTree
from ckpt_surgery.codemods.wording import WordedReason

HEADINGS = ["What it does", "Why is this bad?", "Example", "Fix safety"]
REPAIRS = {"Safe": RepairKind.SAFE, "Unsafe": RepairKind.UNSAFE, "Reported": RepairKind.NONE}


def test_every_file_of_the_folder_is_a_rule() -> None:
    files = {path.stem for path in Path(rules.__path__[0]).glob("*.py")} - {"__init__"}
    assert {rule.name for rule in RULES} == files
    assert [rule.code for rule in RULES] == sorted(rule.code for rule in RULES)
    assert all(rule_of(rule.code) is rule for rule in RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_documents_itself_and_what_it_documents_is_declared(rule: Rule) -> None:
    assert re.findall(r"^## (.*)$", rule.documentation, re.M) == HEADINGS
    assert rule.summary.endswith(".")
    (word,) = re.findall(r"## Fix safety\n(\w+)", rule.documentation)
    assert REPAIRS[word] is rule.repair
    assert {rule_of(code).code for code in rule.settles} == set(rule.settles)


def test_the_wording_of_a_commit_names_the_class_once() -> None:
    wordings = [rule.commit for rule in RULES if rule.commit]
    assert all(wording.format("FooLayer").count("FooLayer") == 1 for wording in wordings)


def test_a_finding_is_as_applicable_as_it_says_or_as_its_rule_declares() -> None:
    context = RuleContext(SourceTree({}, lambda path: None, lambda path: ""))

    def applicability(declared: Applicability | None, said: Applicability | None) -> Applicability:
        rule = Declaration(code="CKPT999", repair=RepairKind.NONE, applicability=declared)
        return context.finding(rule, "a.py", Span(1, 0, 1, 0), "Foo", "message", said).applicability

    assert applicability(Applicability.UNSAFE, None) is Applicability.UNSAFE
    assert applicability(Applicability.UNSAFE, Applicability.INFO) is Applicability.INFO
    with pytest.raises(ValueError, match="CKPT999 declares no applicability"):
        applicability(None, None)


@pytest.mark.parametrize("reasons", WordedReason.__subclasses__(), ids=lambda reasons: reasons.__name__)
def test_each_reason_has_its_own_words(reasons: type[WordedReason]) -> None:
    assert len(list(reasons)) == len(reasons.__members__), "an enum takes two members of one value for the same"
