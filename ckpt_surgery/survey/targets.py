"""What a MODEL argument means: one job per model class that is to be looked at. Nothing is built here.

`resolve` makes the jobs, `build` (in `building`) makes the model of one.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ckpt_surgery.errors import Unverifiable

if TYPE_CHECKING:
    from ckpt_surgery.survey.worker_pool import WorkerPool
    from ckpt_surgery.tiny import ModelEntry

Kind = Literal["class", "config", "remote", "factory"]

_FACTORY = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_HEADS_WITH_LOSS = ("ForCausalLM", "ForConditionalGeneration")
_ROUTER_LOSS = ("output_router_logits", "router loss")
_LONGEST = 86400.0


class TargetError(Unverifiable):
    """A MODEL argument that names nothing: one sentence that says what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class SurveyTarget:
    """One model class to look at, as plain JSON data.

    `target` is what the command line takes to look at it again, `model` the name of the class (for a factory:
    the target), `source` the folder or file with the configuration, or the reference in its `auto_map`.
    `options` are set on the configuration; where there are any, `variant` is the word for them.
    """

    argument: str
    model: str
    kind: Kind = "class"
    model_type: str = ""
    variant: str = ""
    source: str = ""
    options: tuple[tuple[str, bool], ...] = ()

    @property
    def label(self) -> str:
        """The class, with its variant where there is one."""
        return f"{self.model} ({self.variant})" if self.variant else self.model

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data; `target_of` reads it back."""
        return asdict(self)


def target_of(data: Mapping[str, Any]) -> SurveyTarget:
    """The job that `SurveyTarget.to_dict` made `data` from. Raises TypeError or KeyError where it did not."""
    return SurveyTarget(**{**data, "options": tuple((name, value) for name, value in data["options"])})


def resolve(
    names: Sequence[str], *, everything: bool = False, trust_remote_code: bool = False, variants: bool = True
) -> list[SurveyTarget]:
    """The jobs of some MODEL arguments, in order of model type, class and variant, each once.

    A name is a model type (`gpt_bigcode`, `xlm-roberta`), which means all its classes in the auto mappings; a
    class (`GPTBigCodeForCausalLM`); a configuration file or a folder with a `config.json`, with the classes it
    names; or `package.module:factory`. `everything` adds all classes of the installed transformers. `variants`
    adds a second job, with the router's loss, for each class that can compute one.

    Raises:
        TargetError: a name that means nothing here, a configuration that cannot be read, remote code without
            `trust_remote_code`.
    """
    jobs = [job for name in names for job in _jobs(name, trust_remote_code)]
    if everything:
        jobs += map(_class_job, _catalogue().values())
    if variants:
        jobs += [variant for job in jobs for variant in _variants(job)]
    return sorted(dict.fromkeys(jobs), key=lambda job: (job.model_type, job.model, job.variant, job.argument))


def resolve_in(pool: WorkerPool, **options: Any) -> list[SurveyTarget]:
    """`resolve`, in a worker of `pool`: torch and transformers are imported there and not here.

    Raises:
        TargetError: as `resolve`.
        WorkerPoolError: there is no worker, or it died.
    """
    answer = pool.call(f"{__name__}:resolve_apart", **options)
    if "error" in answer:
        raise TargetError(answer["error"])
    return [target_of(job) for job in answer["targets"]]


def resolve_apart(_emit: object, /, **options: Any) -> dict[str, Any]:
    """`resolve` for a caller in another process: the jobs, or the error, as plain JSON data."""
    try:
        return {"targets": [job.to_dict() for job in resolve(**options)]}
    except TargetError as error:
        return {"error": str(error)}


def part_of(jobs: Sequence[SurveyTarget], shard: tuple[int, int]) -> list[SurveyTarget]:
    """Part `i` of `n`, with `shard` (i, n) counted from 1. The parts are disjoint, complete and equally long."""
    index, count = shard
    return list(jobs[len(jobs) * (index - 1) // count : len(jobs) * index // count])


def parse_shard(text: str) -> tuple[int, int]:
    """The numbers of `i/n`. Raises TargetError where it is not that, or `i` is not from 1 to `n`."""
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text.strip())
    index, count = map(int, match.groups()) if match else (0, 0)
    if not 1 <= index <= count:
        raise TargetError(f"{text!r} is no shard: write i/n with i from 1 to n, such as 2/4")
    return index, count


def checked_timeout(seconds: float) -> float:
    """A limit in seconds, if it is one. Raises TargetError where it is not from 0.1 to a day."""
    if not 0.1 <= seconds <= _LONGEST:
        raise TargetError(f"{seconds:g} is no time limit: give seconds from 0.1 to {_LONGEST:g}")
    return seconds


def _jobs(name: str, trust_remote_code: bool) -> list[SurveyTarget]:
    path = Path(name).expanduser()
    if _FACTORY.fullmatch(name):
        return [SurveyTarget(argument=name, model=name, kind="factory")]
    if name.endswith(".json") or (name and path.is_dir() and not _named(name)):
        return _config_jobs(name, path, trust_remote_code)
    if found := _named(name):
        return found
    raise TargetError(_unknown(name, path))


def _catalogue() -> Mapping[str, ModelEntry]:
    from ckpt_surgery.tiny import model_classes

    return model_classes()


def _class_job(entry: ModelEntry) -> SurveyTarget:
    return SurveyTarget(argument=entry.name, model=entry.name, model_type=entry.model_type)


def _named(name: str) -> list[SurveyTarget]:
    """The class of that name, or all classes of that model type; dashes and underscores are one."""
    catalogue = _catalogue()
    if name in catalogue:
        return [_class_job(catalogue[name])]
    wanted = name.replace("-", "_")
    return [_class_job(entry) for entry in catalogue.values() if wanted in (t.replace("-", "_") for t in entry.types)]


def _unknown(name: str, path: Path) -> str:
    if ":" in name and "/" not in name:
        return f"{name!r} is no factory: write package.module:function"
    if path.is_file():
        return f"{name!r} is a file but no configuration: give a config.json, or a folder with one"
    if "/" in name:
        return (
            f"{name!r} is no folder here, and nothing is ever downloaded: "
            "give a folder with the model's config.json, a model type or a class"
        )
    meant = _nearest(name)
    hint = f"did you mean {meant}?" if meant else "give a model type such as gpt_bigcode, or a class"
    return f"the installed transformers has no model type and no model class named {name!r}: {hint}"


def _nearest(name: str) -> str:
    """The names most like this one, without regard to case: "a, b or c"; empty where none is."""
    known: dict[str, str] = {}
    for entry in _catalogue().values():
        known |= {model_type.lower(): model_type for model_type in entry.types if model_type.lower() not in known}
        known.setdefault(entry.name.lower(), entry.name)
    found = [known[near] for near in get_close_matches(name.lower().replace("-", "_"), known, n=3, cutoff=0.6)]
    return " or ".join(filter(None, [", ".join(found[:-1]), *found[-1:]]))


# --- configurations ---------------------------------------------------------------------------------------


def _config_jobs(name: str, path: Path, trust_remote_code: bool) -> list[SurveyTarget]:
    """The jobs of a configuration: its `architectures`, or every class of its model type."""
    file = path / "config.json" if path.is_dir() else path
    config = _read(file)
    source = str(file.resolve())
    model_type = str(config.get("model_type") or "")
    architectures = _architectures(file, config)
    known = [architecture for architecture in architectures if architecture in _catalogue()]
    auto_map = config.get("auto_map")
    if isinstance(auto_map, dict) and not known:
        return _remote_jobs(name, file, model_type, architectures, auto_map, trust_remote_code)
    if known:
        jobs = [_class_job(_catalogue()[architecture]) for architecture in known]
    elif architectures:
        raise TargetError(
            f"{file}: the installed transformers has no class {architectures[0]}, which `architectures` names: "
            "correct the name, or install the transformers that has it"
        )
    else:
        jobs = _named(model_type) if model_type else []
    if not jobs:
        meant = _nearest(model_type) if model_type else ""
        raise TargetError(
            f"{file}: the installed transformers has no model type {model_type!r}"
            + (f": did you mean {meant}?" if meant else ": `model_type` or `architectures` must name one it has")
        )
    return [SurveyTarget(name, job.model, "config", model_type or job.model_type, source=source) for job in jobs]


def _architectures(file: Path, config: Mapping[str, Any]) -> list[str]:
    found = config.get("architectures") or []
    if not isinstance(found, list) or not all(isinstance(entry, str) for entry in found):
        raise TargetError(f"{file}: `architectures` is {json.dumps(found)[:80]}: it must be a list of class names")
    return found


def _read(file: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise TargetError(f"{file}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise TargetError(f"{file}: is no JSON: {' '.join(str(error).split())}") from None
    if not isinstance(config, dict):
        raise TargetError(f"{file}: is no configuration: it must hold an object with a model_type")
    return config


def _remote_jobs(
    name: str, file: Path, model_type: str, architectures: Sequence[str], auto_map: Mapping[str, Any], trusted: bool
) -> list[SurveyTarget]:
    """The model classes that come with a folder. Each is a reference such as `modeling_x.XForCausalLM`."""
    if not trusted:
        raise TargetError(
            f"{file.parent} holds code of its own, and looking at its models means running it: read it first; "
            "only `ckpt_surgery verify --trust-remote-code` runs it then"
        )
    named = {key: value for key, value in auto_map.items() if key.startswith("AutoModel") and isinstance(value, str)}
    references = {value.rpartition(".")[2]: value for value in named.values()}
    if not references:
        raise TargetError(f"{file}: `auto_map` names no model class: it needs an AutoModel entry")
    chosen = [entry for entry in references if entry in architectures] or list(references)
    for reference in filter(None, [auto_map.get("AutoConfig"), *(references[entry] for entry in chosen)]):
        _check_reference(file, reference)
    return [
        SurveyTarget(name, entry, "remote", model_type, source=f"{file.parent.resolve()}::{references[entry]}")
        for entry in chosen
    ]


def _check_reference(file: Path, reference: object) -> None:
    """Whether what `auto_map` refers to is in the folder. Raises TargetError where it is not."""
    module, _, name = str(reference).rpartition(".")
    if "--" in module:
        where = "code of another repository, and nothing is ever downloaded: put that code into the folder"
        raise TargetError(f"{file}: `auto_map` names {reference}, {where}, and name it without `--`")
    if not name or not (file.parent / f"{module}.py").is_file():
        missing = f"there is no {module}.py beside it" if module else "that is no `module.Class`"
        raise TargetError(f"{file}: `auto_map` names {reference}, but {missing}: add the file, or correct the entry")


# --- variants ---------------------------------------------------------------------------------------------


def _variants(job: SurveyTarget) -> Iterator[SurveyTarget]:
    """The same class with the router's loss: a mixture of experts may lose it under checkpointing alone."""
    if job.kind in ("class", "config") and job.model.endswith(_HEADS_WITH_LOSS):
        option, word = _ROUTER_LOSS
        entry = _catalogue()[job.model]
        if _has_option(_config_class(entry), option) and _uses(entry, option, "aux_loss"):
            yield SurveyTarget(job.argument, job.model, job.kind, job.model_type, word, job.source, ((option, True),))


def _config_class(entry: ModelEntry) -> type | None:
    """Its configuration class, by its model type: the model's own module stays unimported."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        found = CONFIG_MAPPING[entry.model_type]
    except Exception:  # whatever the import of somebody else's module may raise: `build` will say it
        return None
    return found if isinstance(found, type) else None


def _has_option(config: type | None, option: str) -> bool:
    if config is None:
        return False
    own = hasattr(config, option) or option in inspect.signature(config.__init__).parameters  # type: ignore[misc]
    nested: Iterable[object] = (getattr(config, "sub_configs", None) or {}).values()
    parts = (part for part in nested if isinstance(part, type) and part.__name__ != "AutoConfig")
    return own or any(_has_option(part, option) for part in parts)


def _uses(entry: ModelEntry, *words: str) -> bool:
    """Whether the class's own forward has these words: many configurations have options that nothing reads."""
    try:
        text = inspect.getsource(vars(entry.load())["forward"])
    except Exception:  # not importable, or no forward of its own
        return False
    return all(word in text for word in words)
