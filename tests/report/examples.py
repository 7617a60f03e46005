"""Reports as verification makes them: healthy, broken, unbuilt and hostile ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ckpt_surgery.measure.kinds import CauseKind, FaultKind, SkipKind
from ckpt_surgery.measure.report import ModelFacts, Report
from ckpt_surgery.measure.results import (
    SURGERY_MODE,
    BlockCount,
    Cost,
    Fault,
    Level,
    Mode,
    ModeReport,
    Outcome,
    Repair,
    Skip,
    Timeline,
)
from ckpt_surgery.report.text import survey_summary, survey_tables
from tests.measure.fault_cases import fault as a_fault
from tests.measure.fault_cases import why

VERSIONS = {"torch": "2.13.0", "transformers": "5.23.0"}
MEASURED: tuple[Level, ...] = ("run", "recompute", "set", "values", "state", "cost")
HOSTILE = "<script>alert('x')</script>"
KIB = 1024


def timeline(blocks: int, *, checkpointed: bool, block_bytes: int = 96 * KIB) -> Timeline:
    """Return bytes over a step: up block by block and down again; checkpointing delays each block's own bytes."""
    kept = block_bytes // 8 if checkpointed else block_bytes
    points, at, held = [(0, 0)], 0, 0
    for _ in range(blocks):
        points += [(at := at + 3, held + block_bytes), (at := at + 3, held := held + kept)]
    backward = at
    for _ in range(blocks):
        at, peak = at + (6 if checkpointed else 4), held - kept + block_bytes
        points += [(at, peak), (at := at + 3, held := held - kept)]
    return Timeline(tuple(points), backward)


def mode_report(mode: Mode, *faults: Fault, blocks: int = 6, recomputed: int = 1, error: float = 0.0) -> ModeReport:
    """Make one mode over a stack of `blocks`; a level fails where one of `faults` says so."""
    failed = {fault.level for fault in faults}
    outcomes: dict[Level, Outcome] = {level: "failed" if level in failed else "ok" for level in MEASURED}
    kept = 2_100 * KIB if recomputed == 0 else 410 * KIB
    return ModeReport(
        mode,
        faults,
        outcomes | {"ranks": "skipped"},
        blocks=tuple(
            BlockCount(f"model.layers.{at}", "plain" if recomputed == 0 else "layer", 1, 1, recomputed)
            for at in range(blocks)
        ),
        errors={
            f"model.layers.{at}.{part}.weight": error * (1 + at) / (1 + blocks)
            for at in range(blocks)
            for part in ("attention.q_proj", "attention.o_proj", "mlp.up_proj", "mlp.down_proj")
        },
        cost=Cost(kept, 2_100 * KIB, 380 * KIB, 4_000_000, 3_000_000, 3_990_000, 1_000_000),
        timeline=timeline(blocks, checkpointed=recomputed > 0),
        seconds=0.25,
    )


def report(model: str, *modes: ModeReport, model_type: str = "", problem: str = "", variant: str = "") -> Report:
    return Report(
        model,
        model_type or model.split("For")[0].lower(),
        variant,
        model,
        ModelFacts("float32", 1_234_567),
        VERSIONS,
        modes,
        timeline(6, checkpointed=False),
        problem,
        seconds={"build": 0.1, "reference": 0.2, **{mode.mode: mode.seconds for mode in modes}},
    )


def healthy(model: str = "LlamaForCausalLM") -> Report:
    reentrant = mode_report("reentrant", error=2e-7)
    return report(model, mode_report("non_reentrant"), replace(reentrant, skips=(not_taken("it takes none"),)))


def not_taken(error: str) -> Skip:
    """Skip a cache that the model does not take."""
    return Skip(("state",), SkipKind.CACHE_NOT_TAKEN, {"argument": "past_key_values", "error": error})


def not_recomputed() -> Report:
    """Make plain blocks: no recompute in either mode."""
    names = tuple(f"model.layers.{at}" for at in range(6))
    cause = why(CauseKind.PLAIN_BLOCK, block="GPTBigCodeBlock")
    fault = a_fault(FaultKind.NOT_RECOMPUTED, *names, explanation=cause)
    cost = a_fault(FaultKind.KEPT_BYTES, explanation=cause)
    modes = (mode_report("non_reentrant", fault, cost, recomputed=0), mode_report("reentrant", fault, recomputed=0))
    return report("GPTBigCodeForCausalLM", *modes, model_type="gpt_bigcode")


def lost() -> Report:
    """Lose 184 gradients in reentrant checkpointing: only two are left to compare."""
    names = tuple(f"pvt_v2.encoder.layers.{at // 8}.blocks.{at % 8}.weight" for at in range(184))
    cause = why(CauseKind.NO_INPUT_GRADIENT, block="PvtV2Layer")
    fault = a_fault(FaultKind.GRADIENT_LOST, *names, explanation=cause, count=184, total=232)
    kept = ("head.weight", "head.bias")
    whole = replace(mode_report("non_reentrant"), errors=dict.fromkeys([*names, *kept], 0.0))
    broken = replace(mode_report("reentrant", fault), errors=dict.fromkeys(kept, 0.0))
    return report("PvtV2ForImageClassification", whole, broken)


def drifted() -> Report:
    """Get values wrong in reentrant checkpointing, two of them not even finite."""
    names = ("model.layers.4.mlp.up_proj.weight", "model.layers.5.mlp.up_proj.weight")
    cause = why(CauseKind.KEYWORD_GRADIENT, block="Gemma3nDecoderLayer", argument="per_layer_input")
    fault = a_fault(FaultKind.GRADIENT_VALUE, *names, explanation=cause, error=0.41)
    broken = mode_report("reentrant", fault, error=0.41)
    errors = {**broken.errors, names[0]: math.nan, names[1]: math.inf}
    made = report("Gemma3nForCausalLM", mode_report("non_reentrant"), replace(broken, errors=errors))
    return replace(made, facts=replace(made.facts, source="/home/me/gemma3n/modeling_gemma3n.py"))


def endless() -> Report:
    """Let the reentrant backward never end: nothing else is known of that mode."""
    cause = why(CauseKind.UNRETURNED_TENSOR, block="WavLMEncoderLayer")
    fault = a_fault(FaultKind.STEP_UNFINISHED, explanation=cause, error="it does not end within 60 s")
    outcomes: Mapping[Level, Outcome] = {"run": "failed"}
    return report("WavLMForCTC", mode_report("non_reentrant"), ModeReport("reentrant", (fault,), outcomes))


def nested() -> Report:
    """Make a stage that checkpoints its layers again, and one block that the model calls three times."""
    inner = tuple(f"swin.encoder.layers.0.blocks.{at}" for at in range(2))
    cause = why(CauseKind.NESTED_BLOCKS, block="SwinLayer", outer="SwinStage")
    fault = a_fault(FaultKind.RECOMPUTE_COUNT, *inner, explanation=cause)
    blocks = (
        BlockCount("swin.encoder.layers.0", "layer", 1, 1, 1),
        *(BlockCount(name, "layer", 1, 1, 2) for name in inner),
        BlockCount("swin.encoder.shared", "layer", 3, 3, 3),
    )
    modes = [replace(mode_report(mode, fault), blocks=blocks) for mode in ("non_reentrant", "reentrant")]
    return report("SwinModel", *modes)


def unsupported(model: str = "FooModel") -> Report:
    problem = f"{model} has supports_gradient_checkpointing = False."
    return replace(report(model, problem=problem), supported=False, reference=None)


def not_built(model: str = "TimmBackbone") -> Report:
    problem = "ImportError: timm is needed (/usr/lib/python3/site-packages/transformers/timm.py, object at 0x7f00aa11)"
    return replace(report(model, problem=problem), reference=None)


def hostile() -> Report:
    """Use names and sentences that would be markup, mathematics or two cells of a table if not escaped."""
    name = f'{HOSTILE}.$x_1$."a"|b`c`'
    cause = why(CauseKind.KEYWORD_GRADIENT, block="*Block* _of_ all", argument=HOSTILE)
    fault = a_fault(FaultKind.STEP_RAISED, name, explanation=cause, error=f"{HOSTILE}|1]]> & </style>\nnext line")
    broken = replace(
        mode_report("reentrant", fault),
        blocks=(BlockCount(name, HOSTILE, 1, 1, 0),),
        errors={name: 0.5},
        skips=(not_taken(HOSTILE),),
    )
    made = report(f"Evil{HOSTILE}", broken, model_type=HOSTILE, variant=HOSTILE)
    return replace(made, facts=replace(made.facts, dtype=HOSTILE, source=HOSTILE))


def huge() -> Report:
    """Use numbers far beyond a tiny model: a thousand blocks, three thousand parameters, terabytes."""
    names = tuple(f"model.layers.{at}.weight" for at in range(3_000))
    fault = a_fault(FaultKind.GRADIENT_VALUE, *names)
    mode = replace(
        mode_report("non_reentrant", fault, blocks=1_000),
        errors={name: 10.0 ** -(1 + at % 12) for at, name in enumerate(names)},
        cost=Cost(10**15, 10**18, 10**12, 10**24, 10**23, 10**22, 10**21),
        timeline=Timeline(tuple((10**12 * at, 10**16 * (at % 7)) for at in range(200)), 10**14),
    )
    return replace(report("HugeModel", mode), facts=ModelFacts("float32", 10**13))


SURGERY = f"Toy: 6 of 6 blocks checkpointed, non-reentrant\n  stack    block\n {18 * chr(0x2500)}\n  layers   ToyLayer"
REFUSAL = "DiffusionLayer layers.0 gave tensors with gradient inside a `DynamicCache`: return them"


def refused(mode: Mode = SURGERY_MODE) -> ModeReport:
    return ModeReport(mode, (), {}, refused=REFUSAL)


def after_surgery(made: Report, *modes: ModeReport, problem: str = "") -> Report:
    """Add to a report what runs after `wrap_blocks`: by default all is well. `problem` is why it was refused."""
    runs = modes or (mode_report(SURGERY_MODE),)
    return replace(made, repair=Repair((), "", problem, refused=True) if problem else Repair(runs, SURGERY))


def remaining() -> Report:
    """Fail in both modes, and after the surgery as well."""
    return after_surgery(replace(not_recomputed(), model="StubbornModel"), spoilt())


def spoilt() -> ModeReport:
    """Make what runs after a surgery that leaves it wrong."""
    cause = why(CauseKind.RNG_NOT_RESTORED)
    fault = a_fault(FaultKind.GRADIENT_VALUE, "layers.0.weight", explanation=cause, error=0.3)
    return mode_report(SURGERY_MODE, fault, error=0.3)


def with_repairs() -> list[Report]:
    """List one of each that can come of `wrap_blocks`, and one on which it was not tried."""
    return [
        after_surgery(healthy()),
        after_surgery(not_recomputed()),
        after_surgery(drifted(), refused()),
        remaining(),
        after_surgery(healthy("SpoiltModel"), spoilt()),
        after_surgery(unsupported("HealedModel")),
        after_surgery(unsupported(), problem="FooModel has no blocks to checkpoint: no stack was found"),
        replace(lost(), repair=Repair(problem="two runs of PvtV2 without checkpointing differ")),
        not_built(),
    ]


def wrapped(*modes: ModeReport) -> Report:
    """Make a model that `wrap_blocks` was called on: one mode runs, the other is skipped."""
    skip = Skip(("run",), SkipKind.ALWAYS_NON_REENTRANT)
    skipped = ModeReport("reentrant", (), dict.fromkeys(MEASURED, "skipped"), skips=(skip,))
    return report("WrappedModel", *(modes or (mode_report(SURGERY_MODE),)), skipped)


def nothing_measured() -> Report:
    """Make the same where only the mode that does not run was asked for."""
    made = wrapped()
    return replace(made, model="SkippedModel", modes=made.modes[1:])


def every_kind() -> list[Report]:
    """List one of each, in no order."""
    return [
        healthy(),
        unsupported(),
        not_recomputed(),
        lost(),
        not_built(),
        drifted(),
        endless(),
        nested(),
        hostile(),
        huge(),
    ]


def survey(classes: int) -> list[Report]:
    """Make as many classes as a whole release has; one in sixteen fails, and some cannot be measured."""
    kinds = (drifted, lost, not_recomputed, nested, endless)
    reports = []
    for at in range(classes):
        name = f"Family{at // 4}For{('CausalLM', 'SequenceClassification', 'TokenClassification', 'Training')[at % 4]}"
        if at % 16 == 0:
            made = kinds[at // 16 % len(kinds)]()
        else:
            made = unsupported(name) if at % 5 == 1 else not_built(name) if at % 25 == 2 else healthy(name)
        reports.append(replace(made, model=name, model_type=f"family{at // 4}"))
    return reports


def survey_lines(
    reports: Sequence[Report], *, width: int, seconds: float | None = None, show_unbuilt: bool = False
) -> list[str]:
    """Return the tables and the summary as the command prints them."""
    tables = survey_tables(reports, width=width, show_unbuilt=show_unbuilt)
    return tables + survey_summary(reports, width=width, seconds=seconds, hint=not show_unbuilt)
