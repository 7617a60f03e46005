"""List the targets of a configuration file, or of a folder with one: classes of transformers, or its own code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckpt_surgery.survey.model_names import catalogue, named_targets, nearest_names
from ckpt_surgery.survey.target import SurveyTarget, TargetError, TargetKind


def config_targets(name: str, path: Path, trust_remote_code: bool) -> list[SurveyTarget]:
    """Return the targets of a configuration: its `architectures`, or every class of its model type.

    If code that comes with it is trusted, it goes before a class of transformers with the same name, as in
    `from_pretrained`.

    Raises:
        TargetError: the file cannot be read, names no known class, or refers to code that is not trusted or missing.
    """
    file = path / "config.json" if path.is_dir() else path
    config = read_config(file)
    source = str(file.resolve())
    model_type = str(config.get("model_type") or "")
    architectures = _architectures(file, config)
    entries = [catalogue()[name] for name in architectures if name in catalogue()]
    auto_map = config.get("auto_map")
    if isinstance(auto_map, dict) and (not entries or (trust_remote_code and _model_references(auto_map))):
        if not trust_remote_code:
            raise TargetError(
                f"{file.parent} comes with its own code, and building its models means running it: read it first; "
                "only --trust-remote-code runs it"
            )
        folder = file.parent.resolve()
        return [
            SurveyTarget(name, entry, TargetKind.REMOTE, model_type, source=f"{folder}::{reference}")
            for entry, reference in remote_classes(file, config).items()
        ]
    if entries:
        targets = list(map(SurveyTarget.of_class, entries))
    elif architectures:
        raise TargetError(
            f"{file}: the installed transformers has no class {architectures[0]}, which `architectures` names: "
            "correct the name, or install the transformers that has it"
        )
    else:
        targets = named_targets(model_type) if model_type else []
    if not targets:
        nearest = nearest_names(model_type) if model_type else ""
        raise TargetError(
            f"{file}: the installed transformers has no model type {model_type!r}"
            + (f": did you mean {nearest}?" if nearest else ": `model_type` or `architectures` must name one it has")
        )
    return [
        SurveyTarget(name, target.model, TargetKind.CONFIG, model_type or target.model_type, source=source)
        for target in targets
    ]


def _architectures(file: Path, config: Mapping[str, Any]) -> list[str]:
    names = config.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TargetError(f"{file}: `architectures` is {json.dumps(names)[:80]}: it must be a list of class names")
    return names


def read_config(file: Path) -> Mapping[str, Any]:
    """Return the values of a `config.json`. Raises TargetError if it cannot be read or holds no JSON object."""
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise TargetError(f"{file}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise TargetError(f"{file}: is not JSON: {' '.join(str(error).split())}") from None
    if not isinstance(config, dict):
        raise TargetError(f"{file}: is not a configuration: it must hold an object with a model_type")
    return config


def remote_classes(file: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the model classes that a configuration comes with, each with its reference: `modeling_x.XModel`.

    They are those that `architectures` names, or else all of `auto_map`. Nothing is imported.

    Raises:
        TargetError: `auto_map` names no model class, or code that is not in the folder of the file.
    """
    auto_map: Mapping[str, Any] = config["auto_map"]
    architectures = _architectures(file, config)
    references = _model_references(auto_map)
    if not references:
        raise TargetError(f"{file}: `auto_map` names no model class: it needs an AutoModel entry")
    chosen = [entry for entry in references if entry in architectures] or list(references)
    for reference in filter(None, [auto_map.get("AutoConfig"), *(references[entry] for entry in chosen)]):
        module, _, name = str(reference).rpartition(".")
        if "--" in module:
            where = "code of another repository, and nothing is ever downloaded: put that code into the folder"
            raise TargetError(f"{file}: `auto_map` names {reference}, {where}, and name it without `--`")
        if not name or not (file.parent / f"{module}.py").is_file():
            missing = f"there is no {module}.py beside it" if module else "that is not a `module.Class`"
            raise TargetError(
                f"{file}: `auto_map` names {reference}, but {missing}: add the file, or correct the entry"
            )
    return {entry: references[entry] for entry in chosen}


def _model_references(auto_map: Mapping[str, Any]) -> dict[str, str]:
    """Return the model classes that `auto_map` names, each with its reference `module.Class`."""
    named = [value for key, value in auto_map.items() if key.startswith("AutoModel") and isinstance(value, str)]
    return {value.rpartition(".")[2]: value for value in named}
