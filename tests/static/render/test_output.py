"""Reports: readable at 80 columns for people, exact for machines.

SARIF is checked against a schema built from `pysarif`, whose classes were generated from the official
sarif-schema-2.1.0.json. Set SARIF_SCHEMA to the path of that file to check against the file itself.
"""

from __future__ import annotations

import dataclasses
import json
import os
import types
import typing
from pathlib import Path
from typing import Any

import jsonschema
import pysarif
import pytest

from ckpt_surgery.codemods import Rule
from ckpt_surgery.codemods.finding import Applicability, Finding, RepairKind
from ckpt_surgery.codemods.repair import Definition, MakeLayer
from ckpt_surgery.static.render import machine
from ckpt_surgery.static.render.machine import to_github, to_json, to_sarif
from ckpt_surgery.static.render.report import CheckReport, apply_lines, display_path
from ckpt_surgery.static.results import ApplyResult, CheckResult, FileChange, Note, Problem
from ckpt_surgery.static.text_edits import Edit

SAFE, UNSAFE, INFO, UNKNOWN = Applicability


def rule(code: str, name: str, summary: str) -> Rule:
    documentation = f"{summary}\n\nWhat it does\n\nFinds."
    return Rule(
        code=code, repair=RepairKind.NONE, name=name, find=lambda context: iter(()), documentation=documentation
    )


RULES = (
    rule("CKPT001", "plain_block", "A block that is not a GradientCheckpointingLayer."),
    rule("CKPT003", "keyword_gradient", "A gradient argument passed by keyword."),
    rule("CKPT004", "positional_past_state", "Past state passed by position."),
)


def finding(code: str = "CKPT003", kind: Applicability = SAFE, **other: Any) -> Finding:
    values = {
        "path": "models/gpt2/modeling_gpt2.py",
        "line": 10,
        "column": 5,
        "class_name": "GPT2Block",
        "message": "`hidden_states` is passed by keyword",
        "family": "gpt2",
        **other,
    }
    return Finding(code, applicability=kind, **values)


@pytest.fixture(autouse=True)
def edits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give repairs the edits EDITS: the files of these findings do not exist."""
    monkeypatch.setattr(machine, "edits_of", lambda findings: {f: EDITS if f.repairs else () for f in findings})


def shown(*findings: Finding, problems: tuple[Problem, ...] = (), suppressed: int = 0, **options: bool) -> CheckReport:
    return CheckReport.of(CheckResult(findings, problems, 12, suppressed, 1.25), RULES, **options)


EDITS = (
    Edit("models/gpt2/modeling_gpt2.py", 40, 40, "hidden"),
    Edit("models/gpt2/modeling_gpt2.py", 10, 14, "\n"),
    Edit("models/other/modeling_other.py", 0, 3, ""),
)
REPAIRS = (MakeLayer("models/gpt2/modeling_gpt2.py", None, Definition("GPT2Block")),)
"""The repairs that make EDITS, in these tests."""
EVERY_KIND = (
    finding("CKPT001", SAFE, repairs=REPAIRS),
    finding("CKPT003", UNSAFE, class_name=""),
    finding("CKPT004", INFO, family="bert"),
    finding("CKPT004", UNKNOWN, path="/elsewhere/a b%[x].py"),
)
PROBLEMS = (
    Problem("models/broken.py", "does not parse: line 3"),
    Problem("/gone", "no such file or folder: check the path"),
)


class TestWhatIsShown:
    def test_faults_are_shown_and_others_are_counted_or_shown_on_request(self) -> None:
        got = shown(*EVERY_KIND)
        assert got.shown == EVERY_KIND[:2]
        assert got.hidden == {INFO: 1, UNKNOWN: 1}
        assert shown(*EVERY_KIND, show_info=True).shown == EVERY_KIND[:3]
        assert shown(*EVERY_KIND, show_unknown=True).shown == (*EVERY_KIND[:2], EVERY_KIND[3])
        everything = shown(*EVERY_KIND, show_info=True, show_unknown=True)
        assert (everything.shown, everything.hidden) == (EVERY_KIND, {})

    def test_a_path_under_the_working_folder_is_shown_relative(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert display_path(f"{tmp_path}/a/b.py") == "a/b.py"
        assert display_path("a/b.py") == "a/b.py"
        assert display_path(f"{tmp_path}er/b.py") == f"{tmp_path}er/b.py"
        assert display_path("../b.py") == "../b.py"


class TestText:
    def test_findings_are_grouped_by_file_those_with_faults_first(self) -> None:
        every = [
            finding("CKPT001", UNKNOWN, path="models/bert/modeling_bert.py", line=3),
            finding(line=12, kind=INFO),
            finding(),
            finding(line=2),
        ]
        lines = shown(*every, show_info=True, show_unknown=True).finding_lines(width=120)
        assert lines == [
            "models/gpt2/modeling_gpt2.py",
            "  2:5 CKPT003 [safe] GPT2Block: `hidden_states` is passed by keyword",
            "  10:5 CKPT003 [safe] GPT2Block: `hidden_states` is passed by keyword",
            "  12:5 CKPT003 [info] GPT2Block: `hidden_states` is passed by keyword",
            "",
            "models/bert/modeling_bert.py",
            "  3:5 CKPT001 [unknown] GPT2Block: `hidden_states` is passed by keyword",
            "",
        ]

    def test_information_is_a_line_a_file_where_it_is_not_shown(self) -> None:
        every = [finding(kind=INFO), finding(kind=INFO), finding("CKPT001", INFO), finding(kind=INFO, path="a.py")]
        assert shown(*every).information_lines() == [
            "Information (--show-info):",
            "  models/gpt2/modeling_gpt2.py: 2 x CKPT003, CKPT001",
            "  a.py: CKPT003",
            "",
        ]

    def test_messages_are_wrapped_as_one_paragraph_and_nothing_is_cut(self) -> None:
        message, path = "word " * 60 + "end", "/very-long/" * 12 + "modeling_x.py"
        lines = shown(finding(message=message, path=path)).finding_lines(width=80)
        text = " ".join(line.strip() for line in lines)
        assert message in text
        assert lines[0] == path
        assert all(len(line) <= 80 for line in lines if path not in line)
        assert "one two" in shown(finding(message="one\ntwo")).finding_lines(width=200)[1]

    def test_the_summary_says_what_was_found_hidden_and_can_be_repaired(self) -> None:
        summary = "\n".join(shown(*EVERY_KIND, problems=PROBLEMS, suppressed=3).summary_lines(width=200))
        assert "Checked 12 files in 1.2 s: 2 findings (1 safe, 1 unsafe), 3 suppressed, 2 problems." in summary
        assert "Not shown: 1 info (--show-info), 1 unknown (--show-unknown)." in summary
        assert "Can be repaired: 1 with `ckpt_surgery apply`." in summary
        assert shown().summary_lines() == ["Checked 12 files in 1.2 s: no findings."]
        assert not any("repaired" in line for line in shown(finding()).summary_lines(width=200))

    def test_statistics_give_count_rule_and_summary(self) -> None:
        lines = shown(finding("CKPT004"), finding("CKPT004", UNSAFE)).statistics_lines(width=200)
        assert [" ".join(line.split()) for line in lines] == [
            "2 CKPT004 positional_past_state (1 safe, 1 unsafe): Past state passed by position.",
            "",
        ]
        assert shown().statistics_lines() == []


def applied(findings: tuple[Finding, ...], left: tuple[Finding, ...], **other: Any) -> ApplyResult:
    values = {"problems": (), "notes": (), "files": 9, "written": True, "seconds": 2.0, **other}
    return ApplyResult((FileChange("a.py", "a\n", "b\n", ("CKPT003",)),), findings, left, **values)


class TestApplySummary:
    def test_it_counts_repaired_and_left_by_rule_and_says_why(self) -> None:
        findings = (
            finding(),
            finding(line=2),
            finding("CKPT004", UNSAFE, repairs=REPAIRS),
            finding("CKPT001", UNSAFE),
        )
        lines = apply_lines(
            applied(findings, findings[1:], notes=(Note("a.py", "the copy comment went"),)), RULES, width=200
        )
        assert lines == [
            "Changed 1 of 9 files in 2.0 s.",
            "  CKPT001 plain_block: 0 repaired, left: 1 to be repaired by hand",
            "  CKPT003 keyword_gradient: 1 repaired, left: 1 not repaired (see the notes and problems)",
            "  CKPT004 positional_past_state: 0 repaired, left: 1 unsafe (--unsafe repairs them)",
            "Notes:",
            "  - a.py: the copy comment went",
        ]
        assert "  CKPT001 plain_block: 1 repaired, none left" in apply_lines(applied((finding("CKPT001"),), ()), RULES)

    def test_what_another_rules_repair_settles_counts_as_repairable(self) -> None:
        reordered, settled = finding("CKPT005", UNSAFE, repairs=REPAIRS), finding(kind=UNSAFE, follows="CKPT005")
        assert "Can be repaired: 2 with `apply --unsafe`." in shown(reordered, settled).summary_lines(width=200)
        both, alone = ((reordered, settled), "unsafe (--unsafe repairs them)"), ((settled,), "to be repaired by hand")
        for findings, why in (both, alone):
            lines = apply_lines(applied(findings, findings), RULES, width=200)
            assert f"  CKPT003 keyword_gradient: 0 repaired, left: 1 {why}" in lines


class TestJson:
    def test_every_field_and_edit_is_there(self) -> None:
        document = json.loads(to_json(shown(*EVERY_KIND, problems=PROBLEMS, suppressed=3), "1.2.3"))
        assert document["schema_version"] == 1
        assert document["tool"] == {"name": "ckpt_surgery", "version": "1.2.3"}
        assert document["findings"][0] == {
            "code": "CKPT001",
            "path": "models/gpt2/modeling_gpt2.py",
            "line": 10,
            "column": 5,
            "class_name": "GPT2Block",
            "message": "`hidden_states` is passed by keyword",
            "applicability": "safe",
            "family": "gpt2",
            "first_line": 0,
            "follows": "",
            "differing": [],
            "edits": [{"path": e.path, "start": e.start, "end": e.end, "text": e.text} for e in EDITS],
        }
        names = {field.name for field in dataclasses.fields(Finding)}
        assert set(document["findings"][0]) == names - {"repairs"} | {"edits"}
        assert document["hidden"] == {"info": 1, "unknown": 1}
        assert document["problems"][1] == {"path": "/gone", "message": "no such file or folder: check the path"}
        assert [(rule["code"], rule["count"]) for rule in document["statistics"]] == [("CKPT001", 1), ("CKPT003", 1)]
        assert (document["files"], document["suppressed"], document["seconds"]) == (12, 3, 1.25)


class TestGithub:
    def test_each_finding_and_problem_is_one_escaped_command(self) -> None:
        got = to_github(shown(*EVERY_KIND, problems=PROBLEMS, show_info=True, show_unknown=True)).splitlines()
        assert [line.split(" ")[0] for line in got] == [
            "::error",
            "::error",
            "::notice",
            "::warning",
            "::error",
            "::error",
        ]
        assert got[0] == (
            "::error file=models/gpt2/modeling_gpt2.py,line=10,col=5,title=CKPT001"
            "::GPT2Block: `hidden_states` is passed by keyword"
        )
        assert got[4] == ("::error file=models/broken.py,title=ckpt_surgery::models/broken.py: does not parse: line 3")
        escaped = to_github(shown(finding(path="a:b,c%.py", message="50%, a:b\r\nnext", class_name="")))
        assert escaped == "::error file=a%3Ab%2Cc%25.py,line=10,col=5,title=CKPT003::50%25, a:b%0D%0Anext\n"
        assert to_github(shown()) == ""


def sarif_schema() -> dict[str, Any]:
    """Return the official schema where SARIF_SCHEMA names it, else the same rules from pysarif's classes.

    The classes have the properties, types, enumerations and requirements of the schema; the bounds that
    they lack are added for the properties that we write.
    """
    if official := os.environ.get("SARIF_SCHEMA"):
        loaded: dict[str, Any] = json.loads(Path(official).read_text(encoding="utf-8"))
        return loaded
    definitions: dict[str, Any] = {}
    root = _schema_of(pysarif.SarifLog, definitions)
    definitions["SarifLog"]["properties"]["$schema"] = {"type": "string"}
    bounds = {"startLine": 1, "startColumn": 1, "charOffset": -1, "charLength": 0}
    for name, least in bounds.items():
        definitions["Region"]["properties"][name]["minimum"] = least
    definitions["Result"]["properties"]["ruleIndex"]["minimum"] = -1
    for owner, name in (("Fix", "artifactChanges"), ("ArtifactChange", "replacements")):
        definitions[owner]["properties"][name]["minItems"] = 1
    return {**root, "definitions": definitions}


_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}


def _schema_of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return {}
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if origin in (typing.Union, types.UnionType):
        (only,) = (part for part in inner if part is not type(None))
        return _schema_of(only, definitions)
    if origin is typing.Literal:
        return {"enum": list(inner)}
    if origin is list:
        return {"type": "array", "items": _schema_of(inner[0], definitions)}
    assert isinstance(kind, type), kind
    assert dataclasses.is_dataclass(kind), kind
    if kind.__name__ not in definitions:
        definition = definitions[kind.__name__] = {"type": "object", "additionalProperties": False}
        hints, fields = typing.get_type_hints(kind), dataclasses.fields(kind)
        definition["properties"] = {_camel(field.name): _schema_of(hints[field.name], definitions) for field in fields}
        missing = dataclasses.MISSING
        definition["required"] = [
            _camel(field.name) for field in fields if field.default is missing and field.default_factory is missing
        ]
        definition["additionalProperties"] = kind.__name__ == "PropertyBag"
    return {"$ref": f"#/definitions/{kind.__name__}"}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def sarif(*findings: Finding, **options: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(to_sarif(shown(*findings, **options), "1.2.3"))
    return document


class TestSarif:
    @pytest.mark.parametrize(("findings", "problems"), [((), ()), (EVERY_KIND, PROBLEMS), ((finding("CKPT999"),), ())])
    def test_it_fits_the_schema(self, findings: tuple[Finding, ...], problems: tuple[Problem, ...]) -> None:
        document = sarif(*findings, problems=problems, show_info=True, show_unknown=True)
        jsonschema.validate(document, sarif_schema())

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda run: run.pop("tool"),
            lambda run: run["results"][0].update(level="fatal"),
            lambda run: run["results"][0]["locations"][0]["physicalLocation"]["region"].update(startLine=0),
            lambda run: run["results"][0]["fixes"][0]["artifactChanges"][0].update(replacements=[]),
        ],
    )
    def test_the_schema_refuses_a_spoiled_document(self, spoil: Any) -> None:
        document = sarif(*EVERY_KIND, problems=PROBLEMS)
        spoil(document["runs"][0])
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(document, sarif_schema())

    def test_results_point_at_their_rule_and_place(self) -> None:
        run = sarif(*EVERY_KIND, show_info=True, show_unknown=True)["runs"][0]
        assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == [rule.code for rule in RULES]
        assert run["tool"]["driver"]["rules"][0]["help"]["text"] == RULES[0].documentation
        assert [result["level"] for result in run["results"]] == ["error", "error", "note", "warning"]
        for result in run["results"]:
            assert RULES[result["ruleIndex"]].code == result["ruleId"]
        assert run["results"][0]["locations"][0] == {
            "physicalLocation": {
                "artifactLocation": {"uri": "models/gpt2/modeling_gpt2.py", "uriBaseId": "SRCROOT"},
                "region": {"startLine": 10, "startColumn": 5},
            },
            "logicalLocations": [{"name": "GPT2Block", "kind": "type"}],
        }

    def test_paths_are_relative_to_the_working_folder_or_absolute_and_quoted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        run = sarif(finding(path=f"{tmp_path}/a b.py"), finding(path="../ü#.py"), finding(path="c:d.py"))["runs"][0]
        places = [result["locations"][0]["physicalLocation"]["artifactLocation"] for result in run["results"]]
        assert places == [
            {"uri": "a%20b.py", "uriBaseId": "SRCROOT"},
            {"uri": f"file://{tmp_path.parent}/%C3%BC%23.py"},
            {"uri": "c%3Ad.py", "uriBaseId": "SRCROOT"},
        ]
        assert run["originalUriBaseIds"]["SRCROOT"]["uri"] == f"file://{tmp_path}/"

    def test_edits_become_one_fix_by_file_in_order(self) -> None:
        (fix,) = sarif(EVERY_KIND[0])["runs"][0]["results"][0]["fixes"]
        first, second = fix["artifactChanges"]
        assert [r["deletedRegion"] for r in first["replacements"]] == [
            {"charOffset": 10, "charLength": 4},
            {"charOffset": 40, "charLength": 0},
        ]
        assert [r["insertedContent"]["text"] for r in first["replacements"]] == ["\n", "hidden"]
        assert second["artifactLocation"]["uri"] == "models/other/modeling_other.py"
        assert "fixes" not in sarif(EVERY_KIND[1])["runs"][0]["results"][0]

    def test_problems_become_notifications_and_the_run_is_not_successful(self) -> None:
        (invocation,) = sarif(problems=PROBLEMS)["runs"][0]["invocations"]
        assert invocation["executionSuccessful"] is False
        assert [n["message"]["text"] for n in invocation["toolExecutionNotifications"]] == [str(p) for p in PROBLEMS]
        assert sarif()["runs"][0]["invocations"][0]["executionSuccessful"] is True
