"""evidence.json keeps to its schema, and the schema knows every field."""

from __future__ import annotations

import dataclasses
import json
from enum import StrEnum
from pathlib import Path
from typing import Any, get_type_hints

import jsonschema
import pytest

from ckpt_surgery.measure.results import LEVELS, MODES
from ckpt_surgery.upstream.evidence import results
from tests.upstream.evidence import evidence_cases as cases

SCHEMA: dict[str, Any] = json.loads(Path(results.__file__).with_name("evidence.schema.json").read_text("utf-8"))
DERIVED = {"ModelRow": {"verdict"}, "Evidence": {"schema_version", "families", "files", "models", "run_slow"}}
PARTS = ("CommandRun", "CheckerResult", "ModelRow", "SignatureChange", "RegressionTest", "Sibling", "Reason", "Commit")
CLOSED = {
    ("CheckerResult", "status"): results.CheckStatus,
    ("ModelRow", "verdict"): results.RowVerdict,
    ("RegressionTest", "kind"): results.RegressionKind,
    ("Evidence", "status"): results.SeriesStatus,
    ("Reason", "code"): results.ReasonCode,
}


def described(name: str) -> dict[str, Any]:
    return SCHEMA if name == "Evidence" else dict(SCHEMA["$defs"][name])


def fields_that_differ(made: type, part: dict[str, Any]) -> set[str]:
    """List the fields that only the dataclass or only the schema has."""
    fields = {field.name for field in dataclasses.fields(made)} | DERIVED.get(made.__name__, set())
    return (fields ^ set(part["properties"])) | (fields ^ set(part["required"]))


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"].endswith("/2020-12/schema")
    assert SCHEMA["properties"]["schema_version"] == {"const": results.EVIDENCE_VERSION}


@pytest.mark.parametrize("name", cases.every_kind())
def test_what_is_written_keeps_to_the_schema(name: str) -> None:
    jsonschema.validate(json.loads(cases.every_kind()[name].to_json()), SCHEMA)


@pytest.mark.parametrize("name", [*PARTS, "Evidence"])
def test_the_schema_and_the_data_have_the_same_fields(name: str) -> None:
    made = getattr(results, name)
    assert fields_that_differ(made, described(name)) == set()


def test_every_dataclass_is_described() -> None:
    made = {
        name
        for name, value in vars(results).items()
        if dataclasses.is_dataclass(value) and value.__module__ == results.__name__
    }
    assert made == {*PARTS, "Evidence"}
    assert SCHEMA["$defs"].keys() == set(PARTS)


def test_the_schema_has_the_words_that_the_types_have() -> None:
    for (name, key), words in CLOSED.items():
        assert set(described(name)["properties"][key]["enum"]) == set(words), (name, key)
    row = described("ModelRow")["properties"]
    assert row["mode"]["enum"] == list(MODES)
    assert row["before"]["items"]["enum"] == row["after"]["items"]["enum"] == list(LEVELS)
    hints = {(name, key) for name in (*PARTS, "Evidence") for key in enum_fields(getattr(results, name))}
    assert hints | {("ModelRow", "verdict")} == set(CLOSED)


def enum_fields(made: type) -> list[str]:
    """Return the fields of a dataclass whose type is a choice of words."""
    return [key for key, kind in get_type_hints(made).items() if isinstance(kind, type) and issubclass(kind, StrEnum)]
