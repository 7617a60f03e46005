"""Write documents as YAML. Values are written as JSON, which YAML reads, except small and large numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def as_yaml(document: Mapping[str, Any]) -> str:
    """Write a document of names, numbers, texts, lists and mappings as YAML."""
    return "".join(f"{line}\n" for line in _lines(document, ""))


def _lines(document: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in document.items():
        key = f"{indent}{name if name.isidentifier() else json.dumps(name)}:"
        if isinstance(value, Mapping) and value:
            yield key
            yield from _lines(value, f"{indent}  ")
        else:
            yield f"{key} {_number(value) if isinstance(value, float) else json.dumps(value)}"


def _number(value: float) -> str:
    """Write a number with a decimal point: without one, readers of YAML 1.1 take 1e-07 for a text."""
    text = repr(value)
    return text if "." in text else text.replace("e", ".0e")
