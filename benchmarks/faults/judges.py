"""The judges of a script: ours, and the tools that people have without us.

A judge gets the path of a script, faulty or mended, and does not know which. Each runs in a separate process.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import json
import math
import os
import runpy
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from benchmarks.faults import script as toolbox

LINTER = "CKPT_FAULTS_LINTER"
"""The variable that names the command of transformers' linter, where it is installed elsewhere."""
LINTER_RULES = ("TRF013", "TRF034", "TRF041")
"""Its rules on checkpointing. Others, as on licence headers, are no judgement on a fault."""
VISIBLE = 0.01
"""The relative difference of two losses that somebody sees who compares curves."""
TOLD = ("checkpoint", "requires_grad", "ready twice", "recompute", "saved for backward")
"""Words by which a warning of torch is one on checkpointing."""
UNCHECKPOINTED = (
    "trained in evaluation mode",
    "trained without checkpointing",
    "of it was recomputed",
    "was not checkpointed",
)
"""Words by which `run` says of a whole model that nothing of it was checkpointed."""
UNTOLD = "parameter should be passed explicitly"
"""Words of the warning that every call without `use_reentrant` gets, faulty or not."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's verdict. `found` is None if it could not judge; `said` is the reason then.

    `remarks` are no faults by themselves: one finds the fault if the twin does not get it.
    """

    found: bool | None
    said: Sequence[str] = ()
    remarks: Sequence[str] = ()


def load(path: Path) -> ModuleType:
    """Import a script under its own name, without running its training."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def symptom(path: Path, cure: str = "") -> toolbox.Symptom:
    """Return the number that shows the fault, after `apply` where that is the cure."""
    if cure == "apply":
        _ours(["apply", "--unsafe", str(path)])
    result: toolbox.Symptom = load(path).symptom()
    return result


def check(path: Path) -> Verdict:
    """Ask `ckpt_surgery check`, which reads the source alone."""
    output = _ours(["check", "--output-format", "json", str(path)])
    findings = json.JSONDecoder().raw_decode(output)[0]["findings"]  # a summary follows
    return Verdict(bool(findings), [f"{each['code']} {each['message']}" for each in findings])


def verify(path: Path) -> Verdict:
    """Ask `ckpt_surgery.verify` with the model and the batch of the training."""
    from ckpt_surgery import verify as measure
    from ckpt_surgery.errors import SurgeryError, VerifyError

    module = load(path)
    model, batch = module.make()
    try:
        modes: Sequence[toolbox.Mode] = getattr(module, "MODES", toolbox.modes_of(model))
        report = measure(model, batch, loss=toolbox.loss_of, switch=getattr(module, "switch", None), modes=modes)
    except (VerifyError, SurgeryError) as refused:
        return Verdict(None, [str(refused)])
    return Verdict("FAILED" in str(report), [str(fault) for _, fault in report.faults])


def watch(path: Path) -> Verdict:
    """Ask `ckpt_surgery run --no-wrap`, which looks at the training."""
    report = path.with_suffix(f".{os.environ.get('RANK', '0')}.report.json")
    output = _ours(["run", "--no-wrap", "--report", str(report), str(path)])
    told = json.loads(report.read_text(encoding="utf-8")) if report.is_file() else {"models": []}
    models = told["models"]
    faults = [f"{fault['rule']} {fault['message']}" for model in models for fault in model.get("faults", ())]
    remarks = [said for model in models for said in model["said"] if any(words in said for words in UNCHECKPOINTED)]
    faults += [told["error"]] if "error" in told else []
    notes = [line for line in output.splitlines() if line.startswith(("ckpt_surgery", "fault:"))]
    return Verdict(bool(faults), [*faults, *remarks, *notes], remarks)


def losses(path: Path) -> Verdict:
    """Compare the losses of twenty steps with those without checkpointing, as most people do."""
    module = load(path)
    off: Callable[[torch.nn.Module], None] = getattr(module, "off", toolbox.switch_off)

    def without() -> tuple[torch.nn.Module, Any]:
        model, batch = module.make()
        off(model)
        return model, batch

    try:
        own = getattr(module, "losses", None)
        with_it = own() if own else toolbox.train(module.make)
        right = own(off) if own and inspect.signature(own).parameters else toolbox.train(without)
    except Exception as raised:
        return Verdict(True, [f"{type(raised).__name__}: {raised}"])
    errors = [abs(a - b) / max(abs(b), 1e-12) for a, b in zip(with_it, right, strict=False)]
    error = max(math.inf if math.isnan(error) else error for error in errors)
    return Verdict(not error <= VISIBLE, [f"losses differ by up to {error:.2g}"])


def torchs(path: Path) -> Verdict:
    """Train with torch's own checks on: `determinism_check`, anomaly detection, and debug mode for a fault's words.

    The debug mode finds no more than `determinism_check`, and less where it takes the place of torch.compile.
    """
    from torch.utils.checkpoint import CheckpointError, set_checkpoint_debug_enabled

    errors: list[str] = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for debug in (None, True):
            try:
                with set_checkpoint_debug_enabled(debug), torch.autograd.set_detect_anomaly(True):
                    runpy.run_path(str(path), run_name="__main__")
                break
            except Exception as raised:
                errors.append(f"{type(raised).__name__}: {raised}")
                if not isinstance(raised, CheckpointError):
                    break
    if errors:
        return Verdict(True, errors)
    texts = dict.fromkeys(
        str(each.message) for each in seen if not issubclass(each.category, FutureWarning | DeprecationWarning)
    )
    told = [text for text in texts if any(word in text.lower() for word in TOLD) and UNTOLD not in text]
    return Verdict(bool(told), told)


def generic(path: Path) -> Verdict:
    """Run a step as the generic test of transformers' suite does: every parameter has to get a gradient.

    Written after its description in the tests of 5.23.0: checkpointing is switched on, everything is trained, and no
    parameter may be left without a gradient that has one without checkpointing.
    """
    module = load(path)
    model, batch = module.make()
    if not hasattr(getattr(model, "module", model), "gradient_checkpointing_enable"):
        return Verdict(None, ["the model has no gradient_checkpointing_enable"])
    without: set[str] = set()
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    try:
        for enabled in (False, True):
            inner = getattr(model, "module", model)
            inner.gradient_checkpointing_enable() if enabled else inner.gradient_checkpointing_disable()
            model.train()
            model.zero_grad()
            toolbox.loss_of(model(**batch)).backward()  # type: ignore[no-untyped-call]
            lost = {name for name, parameter in model.named_parameters() if parameter.grad is None}
            without = without or lost if enabled else lost
    except Exception as raised:
        return Verdict(True, [f"{type(raised).__name__}: {raised}"])
    lost -= without
    return Verdict(bool(lost), [f"no gradient: {', '.join(sorted(lost))}"] if lost else [])


def linter_command() -> str:
    """Return the command of transformers' linter."""
    return os.environ.get(LINTER, "mlinter")


def linter(path: Path) -> Verdict:
    """Ask transformers' own linter, which reads files named `modeling_*.py`."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / f"modeling_{path.stem}.py"
        copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        found = Path(folder) / "found.json"
        try:
            subprocess.run(
                [linter_command(), "--no-progress", "--no-cache", "--output-json", str(found), str(copy)],
                capture_output=True,
                check=False,
                cwd=folder,
            )
        except FileNotFoundError:
            return Verdict(None, ["transformers-mlinter is not installed"])
        findings = json.loads(found.read_text(encoding="utf-8"))["findings"] if found.is_file() else []
    said = [each["message"] for each in findings if each["rule"] in LINTER_RULES]
    return Verdict(bool(said), said)


def _ours(arguments: Sequence[str]) -> str:
    """Run a command of ours in this process; return what it wrote."""
    sys.argv = ["ckpt_surgery", *arguments]
    os.environ["COLUMNS"] = "400"
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), contextlib.suppress(SystemExit):
        runpy.run_module("ckpt_surgery", run_name="__main__", alter_sys=True)
    return output.getvalue()


JUDGES: Mapping[str, Callable[[Path], Verdict]] = {
    "check": check,
    "verify": verify,
    "watch": watch,
    "linter": linter,
    "generic": generic,
    "torch": torchs,
    "losses": losses,
}
ONCE = ("check", "linter")
"""Judges that read source: one process asks them, however many ranks train."""


def answer(question: str, path: Path) -> Mapping[str, Any]:
    """Return what a judge says, or the symptom, as what json can hold."""
    if question in ("symptom", "wrap", "apply"):
        return asdict(symptom(path, question))
    verdict = asdict(JUDGES[question](path))
    named_after_fault = path.stem  # a message that gives the script's place must not count as one that names the cause
    return {**verdict, "said": [said.replace(named_after_fault, "script") for said in verdict["said"]]}
