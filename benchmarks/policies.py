"""Every name of `wrap_blocks(save=...)` on tiny models of many families, held against the untouched model.

    python -m benchmarks.policies policies.jsonl --jobs 2 --page

A case is a family and a name. The page keeps the figures of other releases of transformers. Exits with 1 where a check
failed or a case did not run.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from packaging.version import Version

from benchmarks.survey import MODELS, Page, Row, Survey, installed
from ckpt_surgery.text import code, listed, markdown_table, plural, prose, size, titled


@dataclass(frozen=True, slots=True)
class Family:
    """A released class, the options of its tiny configuration, and what sets its blocks apart."""

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
    """A policy's effect on a model."""

    KEPT = "kept"
    NOTHING = "nothing"
    WRITTEN = "written"


MEANINGS = {
    Outcome.KEPT: "results are kept",
    Outcome.NOTHING: "a name of nothing that the blocks run: a `SurgeryError` lists what they do run",
    Outcome.WRITTEN: "a model that writes such a result in place: a `SurgeryError` names both operators",
}


class Check(StrEnum):
    """A check of each model, name and rate of dropout."""

    GRADIENTS = "gradients"
    BYTES = "bytes"
    ONCE = "once"
    OFFLOAD_GRADIENTS = "gradients with save_offload"
    LISTED = "listed"


CHECKS = {
    Check.GRADIENTS: "loss, every gradient by name, and buffers equal those of the untouched model, bit for bit, in "
    "two steps with the self-check at work",
    Check.OFFLOAD_GRADIENTS: "so they do with `save_offload=True`, with the processor as the host",
    Check.BYTES: "the bytes that the meter finds more than without `save` are those in the surgery's summary",
    Check.ONCE: "`verify` finds each block recomputed once, and no product that is kept made again",
    Check.LISTED: "a name of nothing raises",
}


def cases() -> list[str]:
    """Return each family with each policy."""
    return [f"{family.name}, {save}" for family in FAMILIES for save in POLICIES]


def measure(case: str) -> Row:
    """Measure what a policy does to a family, by rate of dropout."""
    from benchmarks.policies_runs import measured

    family, save = next((f, save) for f in FAMILIES for save in POLICIES if f"{f.name}, {save}" == case)
    return {"settings": measured(family, save, RATES)}


def figures_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the figures of the installed release, in the order of the cases."""
    by_case = {row["case"]: row for row in rows}
    done = {case: by_case[case] for case in cases() if case in by_case}
    return {
        "versions": installed("torch", "transformers"),
        "problems": {case: row["problem"] for case, row in done.items() if "problem" in row},
        "settings": {case: row["settings"] for case, row in done.items() if "settings" in row},
    }


def settings_of(release: Mapping[str, Any]) -> dict[str, Row]:
    """Return each setting by what it is of, in words."""
    every = release["settings"].items()
    return {f"{case} {rate}": setting for case, rates in every for rate, setting in rates.items()}


def failed(release: Mapping[str, Any]) -> dict[str, Row]:
    """Return the settings in which a check failed."""
    return {name: setting for name, setting in settings_of(release).items() if setting["failed"]}


def sections(releases: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the sections of the page, of the figures of each release."""
    yield "# What `save` keeps, by model"
    yield (
        "`wrap_blocks(model, save=[...])` with each of its names, on tiny models with random weights, held against "
        "the same model without a surgery, on a processor. `python -m benchmarks.policies` measures it, and goes on "
        "where it stopped."
    )
    yield "Each model is tried with each name, without dropout and with a rate of 0.1. What is checked:"
    yield "\n".join(f"- {text}" for text in CHECKS.values())
    yield markdown_table(["model", "class", "chosen for"], [[f.name, code(f.model_class), f.why] for f in FAMILIES])
    for release in releases:
        settings, wrong = settings_of(release), failed(release)
        outcomes = Counter(setting["outcome"] for setting in settings.values())
        yield f"## transformers {release['versions']['transformers']}"
        checks = "no check failed" if not wrong else f"a check failed in {len(wrong)}"
        yield f"{plural(len(settings), 'setting')} (torch {release['versions']['torch']}): {checks}."
        yield markdown_table(["settings", "what became of them"], [[f"{outcomes[o]}", MEANINGS[o]] for o in Outcome])
        yield "What is kept with dropout at 0.1, in results and in the bytes that they add:"
        rows = [[f.name, *(_cell(release, f"{f.name}, {save}") for save in POLICIES)] for f in FAMILIES]
        yield markdown_table(["model", *map(code, POLICIES)], rows)
        more = {name: each for name, each in settings.items() if each["added"] != each["bytes"]}
        sizes = [[name, *(f"{each[key]:,}" for key in ("bytes", "added", "unheld"))] for name, each in more.items()]
        if more:
            yield (
                "Bytes in a summary are without what blocks return, for that is kept as the input of what follows. "
                "Where nothing follows that keeps it, as behind a last block whose result is averaged, `save` adds "
                "that, too:"
            )
            yield markdown_table(["setting", "summary", "meter", "returned, and kept by nothing"], sizes)
        names = [[name, listed(each["failed"])] for name, each in wrong.items()]
        yield titled("### Checks that failed", markdown_table(["setting", "check"], names) if wrong else "")
        whys = [[case, prose(why)] for case, why in release["problems"].items()]
        yield titled("### What did not run", markdown_table(["case", "why"], whys) if whys else "")


def _cell(release: Mapping[str, Any], case: str) -> str:
    setting = release["settings"].get(case, {}).get("with dropout")
    if setting is None:
        return "did not run" if case in release["problems"] else "not tried"
    if setting["failed"]:
        return f"**{listed(setting['failed'])}**"
    if setting["outcome"] == Outcome.KEPT:
        return f"{setting['results']:,}, {size(setting['bytes'])}"
    return "written in place" if setting["outcome"] == Outcome.WRITTEN else "-"


def conclude(rows: Sequence[Row], known: int, page: bool) -> bool:
    """Show the figures of the installed release, and tell whether anything failed."""
    release = figures_of(rows)

    def version(each: Mapping[str, Any]) -> Version:
        return Version(each["versions"]["transformers"])

    def merged(kept: Sequence[Any]) -> list[Any]:
        return sorted(
            [release, *(each for each in kept if version(each) != version(release))], key=version, reverse=True
        )

    PAGE.show([release], page, merged)
    return bool(failed(release) or release["problems"])


PAGE = Page(
    "policies",
    "<!-- Written by `python -m docs.generate` from policies.json: run `python -m benchmarks.policies`. -->",
    sections,
)
SURVEY = Survey("policies", __doc__, cases, measure, conclude, MODELS, 900.0, shuffled=False)
if __name__ == "__main__":
    sys.exit(SURVEY.main())
