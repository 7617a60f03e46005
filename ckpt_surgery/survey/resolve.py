"""Resolve MODEL arguments to targets. Nothing is built here.

A name is looked up by `model_names`, a folder is read by `configurations`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_surgery.model_patches import family_tables
from ckpt_surgery.survey.build import device_problem
from ckpt_surgery.survey.configurations import config_targets
from ckpt_surgery.survey.model_names import catalogue, named_targets, nearest_names, variants_of
from ckpt_surgery.survey.target import SurveyTarget, TargetError, TargetKind

if TYPE_CHECKING:
    from ckpt_surgery.survey.worker_pool import WorkerPool

_FACTORY = re.compile(r"\w+(\.\w+)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_FACTORY_FILE = re.compile(r"(.+\.py):[^\W\d]\w*(\.[^\W\d]\w*)*")


def resolve(
    names: Sequence[str], *, everything: bool = False, trust_remote_code: bool = False, variants: bool = True
) -> list[SurveyTarget]:
    """Return the targets of MODEL arguments, once each, sorted by model type, class and variant.

    A name is a model type (`gpt_bigcode`, `xlm-roberta`), for all its classes; a class
    (`GPTBigCodeForCausalLM`); a configuration file or a folder with a `config.json`, for the classes it names;
    `package.module:factory` or `FILE.py:factory`.

    Args:
        names: the arguments.
        everything: whether to add all classes of the installed transformers.
        trust_remote_code: whether code that comes with a configuration may be run.
        variants: whether to add a second target, with the router loss, for each class that can compute one.

    Raises:
        TargetError: an unknown name, an unreadable configuration, or remote code without `trust_remote_code`.
    """
    targets = [target for name in names for target in _targets_of(name, trust_remote_code)]
    if everything:
        named = {target.model for target in targets if target.kind is TargetKind.CLASS}
        targets += (SurveyTarget.of_class(entry) for name, entry in catalogue().items() if name not in named)
    if variants:
        targets += [variant for target in targets for variant in variants_of(target)]
    return sorted(
        dict.fromkeys(targets), key=lambda target: (target.model_type, target.model, target.variant, target.argument)
    )


def resolve_in(pool: WorkerPool, **options: Any) -> list[SurveyTarget]:
    """Run `resolve` in a worker of `pool`, so that torch and transformers are imported there and not here.

    Raises:
        TargetError: as in `resolve`, or no model can run on the `device` among the options.
        WorkerPoolError: no worker can be started, or it died.
    """
    answer = pool.call(f"{__name__}:resolve_apart", **options)
    if "error" in answer:
        raise TargetError(answer["error"])
    return [SurveyTarget.of(target) for target in answer["targets"]]


def resolve_apart(_emit: object, /, device: str = "", **options: Any) -> dict[str, Any]:
    """Run `resolve` for a caller in another process: the targets or the error, as plain JSON data."""
    if device and (problem := device_problem(device)):
        return {"error": problem}
    try:
        return {"targets": [target.to_dict() for target in resolve(**options)]}
    except TargetError as error:
        return {"error": str(error)}


def _targets_of(name: str, trust_remote_code: bool) -> list[SurveyTarget]:
    path = Path(name).expanduser()
    if (match := _FACTORY_FILE.fullmatch(name)) and Path(match[1]).expanduser().is_file():
        file = str(Path(match[1]).expanduser())
        return [SurveyTarget(argument=name, model=name, kind=TargetKind.FACTORY, source=file)]
    if _FACTORY.fullmatch(name):
        return [SurveyTarget(argument=name, model=name, kind=TargetKind.FACTORY)]
    if name.endswith(".json") or (name and path.is_dir() and not named_targets(name)):
        return config_targets(name, path, trust_remote_code)
    if targets := named_targets(name):
        return targets
    raise TargetError(_why_unknown(name, path))


def _why_unknown(name: str, path: Path) -> str:
    if match := _FACTORY_FILE.fullmatch(name):
        return f"there is no file {match[1]}"
    if ":" in name and "/" not in name:
        return f"{name!r} is not a factory: write package.module:function or FILE.py:function"
    if path.is_file():
        return f"{name!r} is a file but not a configuration: give a config.json, or a folder with one"
    if "/" in name:
        return (
            f"{name!r} is not a folder here, and nothing is ever downloaded: "
            "give a folder with the model's config.json, a model type or a class"
        )
    if reason := family_tables().left_out.get(name):
        return f"{name} cannot be verified: it is {reason}"
    nearest = nearest_names(name)
    hint = f"did you mean {nearest}?" if nearest else "give a model type such as gpt_bigcode, or a class"
    return f"the installed transformers has no model type and no model class named {name!r}: {hint}"
