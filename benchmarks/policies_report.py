"""The names of `wrap_blocks(save=...)` on released models: what is tried, its figures, and its page.

Needs neither torch nor transformers: `policies` measures, and this writes down.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from ckpt_surgery.text import code, listed, markdown_table, plural, prose, size

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "coverage" / "policies.json"
"""Where the figures of the page are kept."""
PAGE = FIGURES.with_suffix(".md")
NOTICE = "<!-- Written by `python -m docs.generate` from policies.json: run `python -m benchmarks.policies`. -->"


@dataclass(frozen=True, slots=True)
class Family:
    """A released class, with the options of its tiny configuration, and what its blocks have that others have not."""

    name: str
    model_class: str
    why: str
    options: Mapping[str, object] = field(default_factory=dict)


FAMILIES = (
    Family("Llama", "LlamaForCausalLM", "dense and causal, with norms made of single operators"),
    Family("GPT-2", "GPT2LMHeadModel", "eager attention, biases, dropout", {"_attn_implementation": "eager"}),
    Family("Mixtral", "MixtralForCausalLM", "experts behind a router, with its loss", {"output_router_logits": True}),
    Family("Qwen3-MoE", "Qwen3MoeForCausalLM", "experts behind a router, and norms of heads"),
    Family("BERT", "BertForMaskedLM", "an encoder whose blocks return what a norm made"),
    Family("T5", "T5ForConditionalGeneration", "an encoder and a decoder; position biases, written in place"),
    Family("Whisper", "WhisperForConditionalGeneration", "audio: an encoder and a decoder with cross-attention"),
    Family("Wav2Vec2-Conformer", "Wav2Vec2ConformerForCTC", "audio: convolutions and three kinds of norms in blocks"),
    Family("ViT", "ViTForImageClassification", "vision: an encoder of patches"),
    Family(
        "ConvNeXt", "ConvNextForImageClassification", "convolutions, branches dropped by chance, a mean at the end"
    ),
    Family("ResNet", "ResNetForImageClassification", "convolutions, running statistics, sums written in place"),
    Family("Qwen2-VL", "Qwen2VLForConditionalGeneration", "a vision stack and a language stack"),
    Family("DETR", "DetrForObjectDetection", "detection behind a frozen backbone"),
    Family("RT-DETR", "RTDetrForObjectDetection", "detection in six stacks, with deformable attention"),
    Family("Mamba", "MambaForCausalLM", "a state-space model: a scan, and no attention"),
)
POLICIES = ("attention", "matmul", "matmul:2", "router", "norm", "conv", "random", "aten.mul", "aten.add.Tensor")
RATES = {"without dropout": 0.0, "with dropout": 0.1}


class Outcome(StrEnum):
    """What a policy does to a model."""

    KEPT = "kept"
    NOTHING = "nothing"
    WRITTEN = "written"


MEANINGS = {
    Outcome.KEPT: "results are kept",
    Outcome.NOTHING: "a name of nothing that the blocks run: a `SurgeryError` lists what they do run",
    Outcome.WRITTEN: "a model that writes such a result in place: a `SurgeryError` names both operators",
}


class Check(StrEnum):
    """What is checked of each model, name and rate of dropout."""

    GRADIENTS = "gradients"
    BYTES = "bytes"
    ONCE = "once"
    ALL = "all"
    OFFLOAD_GRADIENTS = "gradients with save_offload"
    OFFLOAD_BYTES = "bytes with save_offload"
    STAYS = "stays on the device"
    BESIDE_BYTES = "bytes beside offload"
    LISTED = "listed"


CHECKS = {
    Check.GRADIENTS: "loss, every gradient by name, and buffers equal those of the untouched model, bit for bit, in "
    "two steps with the self-check at work",
    Check.OFFLOAD_GRADIENTS: "so they do with `save_offload=True`, with the processor as the host",
    Check.BYTES: "the bytes that the meter finds more than without `save` are those in the surgery's summary",
    Check.BESIDE_BYTES: 'so they are with `offload="cpu"` alone',
    Check.OFFLOAD_BYTES: "with `save_offload=True`, what leaves and what stays add up to them",
    Check.STAYS: "no more stays then than one block's results",
    Check.ONCE: "recomputes that run whole blocks run each operator as often as the forward, less the results kept",
    Check.ALL: "of products, norms, convolutions and named operators, all that the blocks run are kept",
    Check.LISTED: "a name of nothing raises, and lists every operator that the blocks run, as often as they do",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """What a policy does to a model at one rate of dropout, and the checks that failed.

    `results` of `operators` were kept, of so many `bytes` by the summary; the meter finds so many `added`. `unheld`
    are those of what blocks return and nothing else keeps. With save_offload so many `left`, and so many `stayed`.
    """

    outcome: Outcome
    failed: tuple[Check, ...] = ()
    operators: tuple[str, ...] = ()
    results: int = 0
    bytes: int = 0
    added: int = 0
    unheld: int = 0
    left: int = 0
    stayed: int = 0

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """What `asdict` made `data` from."""
        kinds = {"outcome": Outcome(data["outcome"]), "failed": tuple(map(Check, data["failed"]))}
        return cls(**{**data, **kinds, "operators": tuple(data["operators"])})


@dataclass(frozen=True, slots=True)
class Column:
    """One release: `versions` of torch and transformers, settings by case and rate, and cases that did not run."""

    versions: Mapping[str, str]
    settings: Mapping[str, Mapping[str, Setting]]
    problems: Mapping[str, str]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """What `asdict` made `data` from."""
        settings = {
            case: {rate: Setting.of(each) for rate, each in rates.items()} for case, rates in data["settings"].items()
        }
        return cls(data["versions"], settings, data["problems"])

    def all_settings(self) -> Iterator[tuple[str, Setting]]:
        """Each setting, and what it is of, in words."""
        for case, rates in self.settings.items():
            for rate, setting in rates.items():
                yield f"{case} {rate}", setting

    @property
    def failed(self) -> bool:
        """Whether a check failed, or something did not run."""
        return bool(self.problems) or any(setting.failed for _, setting in self.all_settings())


def case_of(family: str, save: str) -> str:
    """The name of a case."""
    return f"{family}, {save}"


def cases() -> list[str]:
    """Each family with each policy."""
    return [case_of(family.name, save) for family in FAMILIES for save in POLICIES]


def column_of(rows: Iterable[Mapping[str, Any]], versions: Mapping[str, str]) -> Column:
    """The figures of what `policies` wrote; of a case that was examined twice the later counts."""
    by_case = {row["class"]: row for row in rows}
    done = {case: by_case[case] for case in cases() if case in by_case}
    settings = {
        case: {rate: Setting.of(each) for rate, each in row["settings"].items()}
        for case, row in done.items()
        if "settings" in row
    }
    return Column(versions, settings, {case: row["problem"] for case, row in done.items() if "problem" in row})


def read_columns(path: Path | None = None) -> list[Column]:
    """The figures of each release. Raises OSError, or KeyError or ValueError where they are not such."""
    return [Column.of(data) for data in json.loads((path or FIGURES).read_text(encoding="utf-8"))]


def write_column(column: Column, path: Path | None = None) -> None:
    """Keep the figures of a release, in place of those that there were of it; the newest release comes first."""
    file = path or FIGURES
    others = read_columns(file) if file.is_file() else []
    columns = [column, *(each for each in others if each.versions["transformers"] != column.versions["transformers"])]
    columns.sort(key=lambda each: [int(part) for part in each.versions["transformers"].split(".")], reverse=True)
    file.write_text(f"[{', '.join(map(_written, columns))}]\n", encoding="utf-8")


def _written(column: Column) -> str:
    """A release as json, one case a line."""
    data = asdict(column)
    settings = ",\n".join(f"  {json.dumps(case)}: {json.dumps(rates)}" for case, rates in data.pop("settings").items())
    return f'{json.dumps(data)[:-1]}, "settings": {{\n{settings}\n}}}}'


def page(columns: Iterable[Column]) -> str:
    """The page in docs/coverage."""
    every = list(columns)
    parts = [
        NOTICE,
        "# What `save` keeps, by model",
        "`wrap_blocks(model, save=[...])` with each of its names, on tiny models with random weights, held against "
        "the same model without a surgery, on a processor. `python -m benchmarks.policies` measures it, and goes on "
        "where it stopped.",
        "Each model is tried with each name, without dropout and with a rate of 0.1. What is checked:",
        "\n".join(f"- {text}" for text in CHECKS.values()),
        markdown_table(["model", "class", "chosen for"], [[f.name, code(f.model_class), f.why] for f in FAMILIES]),
    ]
    for column in every:
        parts += list(_of_release(column))
    return "\n\n".join(parts) + "\n"


def _of_release(column: Column) -> Iterator[str]:
    settings = dict(column.all_settings())
    failed = {name: setting for name, setting in settings.items() if setting.failed}
    outcomes = Counter(setting.outcome for setting in settings.values())
    yield f"## transformers {column.versions['transformers']}"
    checks = "no check failed" if not failed else f"a check failed in {len(failed)}"
    yield f"{plural(len(settings), 'setting')} (torch {column.versions['torch']}): {checks}."
    yield markdown_table(["settings", "what became of them"], [[f"{outcomes[o]}", MEANINGS[o]] for o in Outcome])
    yield "What is kept with dropout at 0.1, in results and in the bytes that they add:"
    yield markdown_table(["model", *map(code, POLICIES)], [_row(column, family) for family in FAMILIES])
    unheld = {name: each for name, each in settings.items() if each.added != each.bytes}
    if unheld:
        yield (
            "Bytes in a summary are without what blocks return, for that is kept as the input of what follows. Where "
            "nothing follows that keeps it, as behind a last block whose result is averaged, `save` adds that, too:"
        )
        rows = [[name, f"{each.bytes:,}", f"{each.added:,}", f"{each.unheld:,}"] for name, each in unheld.items()]
        yield markdown_table(["setting", "summary", "meter", "returned, and kept by nothing"], rows)
    if failed:
        yield "### Checks that failed"
        yield markdown_table(["setting", "check"], [[name, listed(each.failed)] for name, each in failed.items()])
    if column.problems:
        yield "### What did not run"
        yield markdown_table(["case", "why"], [[case, prose(why)] for case, why in column.problems.items()])


def _row(column: Column, family: Family) -> list[str]:
    return [family.name, *(_cell(column, case_of(family.name, save)) for save in POLICIES)]


def _cell(column: Column, case: str) -> str:
    setting = column.settings.get(case, {}).get("with dropout")
    if setting is None:
        return "did not run" if case in column.problems else "not tried"
    if setting.failed:
        return f"**{listed(setting.failed)}**"
    if setting.outcome is Outcome.KEPT:
        return f"{setting.results:,}, {size(setting.bytes)}"
    return {Outcome.NOTHING: "-", Outcome.WRITTEN: "written in place"}[setting.outcome]
