"""Do the most used classes work in the installed release of transformers, and is its source repaired?

Runs `ckpt_surgery verify --fix` on them, and `check` and `apply` on a copy of the models. Writes the column of the
release in docs/coverage/releases.json, and docs/coverage/releases.md anew. About 10 minutes on two cores; `make
releases` does so for every release. Exits with 1 where something stays wrong.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchmarks.stopwatch import CommandFailed
from benchmarks.stopwatch import measure as run_command
from benchmarks.survey import ROOT, Page, installed, written_by
from ckpt_surgery import apply, check
from ckpt_surgery.codemods.finding import Applicability
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.results import QUICK_LEVELS
from ckpt_surgery.report.summary import portable
from ckpt_surgery.static.discover import installed_models
from ckpt_surgery.static.results import CheckResult
from ckpt_surgery.text import code, listed, markdown_table, prose, titled

JOBS = 2
RELEASES = ("4.52.4", "4.53.3", "4.55.4", "5.0.0", "5.10.4", "5.23.0")
CLASSES = (
    "LlamaForCausalLM", "GPT2LMHeadModel", "BertForMaskedLM", "MixtralForCausalLM", "T5ForConditionalGeneration",
    "ViTForImageClassification", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "OPTForCausalLM",
    "WhisperForConditionalGeneration", "Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3nForCausalLM",
    "Zamba2ForCausalLM", "GPTBigCodeForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM", "CLIPModel", "SiglipModel",
    "BartForConditionalGeneration", "Mamba2ForCausalLM", "FalconForCausalLM", "BloomForCausalLM",
    "GPTNeoXForCausalLM", "DeepseekV3ForCausalLM", "RoFormerForMaskedLM", "ImageGPTForCausalImageModeling",
    "Wav2Vec2ForCTC", "SwinForImageClassification", "DetrForObjectDetection", "Blip2ForConditionalGeneration",
    "LlavaForConditionalGeneration", "Qwen2VLForConditionalGeneration", "ElectraForMaskedLM", "DebertaV2ForMaskedLM",
    "XLNetLMHeadModel", "LongformerForMaskedLM", "RecurrentGemmaForCausalLM", "GitForCausalLM", "TrOCRForCausalLM",
)  # fmt: skip
"""The most used families, and those that were broken in one of the releases."""


class Outcome(StrEnum):
    """The outcome of one class in one release."""

    OK = "ok"
    REPAIRED = "repaired"
    REFUSED = "refused"
    FAILED = "failed"
    NOT_BUILT = "not built"
    ABSENT = "absent"


MEANING = {
    Outcome.OK: "right in both modes as released, and after `wrap_blocks`",
    Outcome.REPAIRED: "wrong or without checkpointing as released, and right after `wrap_blocks`",
    Outcome.REFUSED: "`wrap_blocks` refuses the class, or a call of it, with a sentence",
    Outcome.FAILED: "something is wrong after `wrap_blocks`",
    Outcome.NOT_BUILT: "no tiny model with a working step could be made",
    Outcome.ABSENT: "the release has no such class",
}


def main() -> int:
    """Measure the installed release. Return 1 where something stays wrong, 2 where it could not run."""
    release = installed("transformers")["transformers"]
    try:
        if release not in RELEASES:
            raise CommandFailed(f"transformers {release} is none of {', '.join(RELEASES)}")
        column = measure()
    except CommandFailed as error:
        print(f"release_table: {error}.", file=sys.stderr)
        return 2
    columns = {**PAGE.read(), release: column}
    PAGE.write({each: columns[each] for each in RELEASES if each in columns})
    counts = Counter(column["outcomes"].values())
    print(f"transformers {release}: {', '.join(f'{counts[kind]} {kind}' for kind in Outcome if counts[kind])}")
    return int(failed(column))


def measure() -> dict[str, Any]:
    """Make the column of the installed release. Raises CommandFailed where `verify` ends without a report."""
    models = installed_models()
    texts = (path.read_text(encoding="utf-8") for path in models.rglob("modeling_*.py"))  # none is imported
    defined = {name for text in texts for name in re.findall(r"^class (\w+)\(", text, re.MULTILINE)}
    with tempfile.TemporaryDirectory(prefix="release-table-") as folder:
        words = [*(name for name in CLASSES if name in defined), "--levels", ",".join(QUICK_LEVELS)]
        document = json.loads(written_by_verify(words, "json", Path(folder) / "report.json"))
    reports = {report.label: report for report in map(Report.from_dict, document["reports"])}
    order = sorted(reports, key=lambda label: (CLASSES.index(label.partition(" (")[0]), label))
    source = repair_twice(models)
    return {
        "versions": document["versions"],
        "outcomes": {label: outcome_of(reports[label]) for label in order},
        "reasons": {label: reason for label in order if (reason := reason_of(reports[label]))},
        "files": source["files"],
        "before": source["found"],
        "after": source["left"],
    }


def written_by_verify(words: Sequence[str], form: str, file: Path) -> str:
    """Return what `ckpt_surgery verify --fix` writes to `file` in this form. Raises CommandFailed."""
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "ckpt_surgery", "verify", *words, "--jobs", str(JOBS), "--fix", "--exit-zero"]
    # It ends with 2 where a class is not built, and its report says so.
    ended = run_command([*command, "--output-format", form, "--output", file], folder=ROOT, accept=(0, 2))
    if not file.is_file():
        raise CommandFailed(f"verify wrote no report: {ended.errors.strip().rpartition(chr(10))[2]}")
    return file.read_text(encoding="utf-8")


def repair_twice(models: Path) -> dict[str, Any]:
    """Run `check` on a folder of models, and on a copy of it after `apply`, which a second one leaves alone."""
    found = check([models], jobs=JOBS)
    with tempfile.TemporaryDirectory(prefix="release-table-") as scratch:
        copy = Path(scratch) / models.parent.name  # with the package around it
        shutil.copytree(models.parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
        folder = copy / models.name
        apply([folder], jobs=JOBS)
        once = {file: file.read_bytes() for file in folder.rglob("*.py")}
        apply([folder], jobs=JOBS)
        again = sum(file.read_bytes() != text for file, text in once.items())
        left = check([folder], jobs=JOBS)
    return {"files": found.files, "found": tally(found), "left": tally(left), "changed_again": again}


def tally(result: CheckResult) -> dict[str, int]:
    """Count the findings of a check by applicability."""
    return dict(sorted(Counter(str(finding.applicability) for finding in result.findings).items()))


def failed(column: Mapping[str, Any]) -> bool:
    """Tell whether something is left that this project should have repaired."""
    return Outcome.FAILED in column["outcomes"].values() or column["after"].get("safe", 0) > 0


def outcome_of(report: Report) -> Outcome:
    """Return the outcome of a class that was examined as released and after `wrap_blocks`."""
    repaired = report.repair.status if report.repair else "not repaired"
    if report.status == "not built":
        return Outcome.NOT_BUILT
    if repaired == "refused":
        return Outcome.REFUSED
    if repaired == "ok":
        return Outcome.OK if report.status == "ok" else Outcome.REPAIRED
    return Outcome.FAILED


def reason_of(report: Report) -> str:
    """Say why the outcome is not ok, on one line of plain text; empty where it is."""
    outcome = outcome_of(report)
    if outcome is Outcome.OK:
        return ""
    if outcome is Outcome.NOT_BUILT:
        return portable(report.problem)
    shown = report if outcome is Outcome.REPAIRED else report.repaired
    said = list(report.repair.refusals) if outcome is Outcome.REFUSED and report.repair else []
    for modes, fault in shown.merged_faults:
        cause = f"{fault.cause} {fault.rule}".strip() or str(fault)
        said.append(f"{cause} ({' and '.join(mode.replace('_', '-') for mode in modes)})")
    if not said:
        said = [
            shown.problem or ("it was not tried" if report.supported else "It claims no support for checkpointing.")
        ]
    return portable("; ".join(dict.fromkeys(said)))


def sections(columns: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the sections of the page, of a column for each release."""
    seen = {label: None for column in columns.values() for label in column["outcomes"]}
    labels = [label for name in CLASSES for label in seen if label.partition(" (")[0] == name]
    outcomes = {
        label: [column["outcomes"].get(label, Outcome.ABSENT) for column in columns.values()] for label in labels
    }
    torches = sorted({column["versions"].get("torch", "") for column in columns.values()})
    yield "# The most used classes, by release of transformers"
    yield (
        f"{len(CLASSES)} classes: the most used families, and those that some release got wrong. Each is a tiny model "
        "with random weights, trained as released, non-reentrant and reentrant, and after `wrap_blocks`, beside a run "
        f"without checkpointing (torch {listed(torches)}). `make releases` measures it: `ckpt_surgery verify --fix` "
        "in an environment for each release."
    )
    yield markdown_table(["result", "meaning"], [[outcome, meaning] for outcome, meaning in MEANING.items()])
    yield "## Live models"
    counts = [
        [f"**{kind}**", *(str(sum(outcomes[label][at] == kind for label in labels)) for at in range(len(columns)))]
        for kind in Outcome
    ]
    yield markdown_table(["class", *columns], [*([code(label), *outcomes[label]] for label in labels), *counts])
    rows = []
    for label in labels:  # each reason once, with the releases in which it holds
        releases: dict[tuple[str, str], list[str]] = {}
        for at, (release, column) in enumerate(columns.items()):
            if reason := column["reasons"].get(label):
                releases.setdefault((outcomes[label][at], reason), []).append(release)
        rows += [[code(label), ", ".join(where), result, prose(why)] for (result, why), where in releases.items()]
    yield titled("## Why", markdown_table(["class", "releases", "result", "reason"], rows) if rows else "")
    yield "## Source"
    yield (
        "What `check` finds in all models of the release, and in a copy that `apply` has repaired. `apply` repairs "
        "the safe ones; the unsafe ones are faults for a person, and the others none. A repair may bring another "
        "finding to light."
    )
    kinds = {f"{kind} findings": (kind,) for kind in Applicability} | {"**findings**": tuple(Applicability)}
    changes = [[title, *(_change(column, *some) for column in columns.values())] for title, some in kinds.items()]
    files = ["files", *(f"{column['files']:,}" for column in columns.values())]
    yield markdown_table(["", *columns], [files, *changes])


def _change(column: Mapping[str, Any], *kinds: str) -> str:
    before, after = (sum(column[side].get(kind, 0) for kind in kinds) for side in ("before", "after"))
    return f"{before:,} → {after:,}"


PAGE = Page("releases", written_by("make releases", "releases"), sections)
if __name__ == "__main__":
    sys.exit(main())
