"""The assertion for test suites. The mixin for transformers' own test classes is `tester_mixin`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from torch import nn

from ckpt_surgery.measure.arguments import VerifyOptions
from ckpt_surgery.measure.report import Report
from ckpt_surgery.measure.verify import verify

__unittest = True  # leaves the frames of this module out of unittest's tracebacks


def assert_checkpointing(model: nn.Module, inputs: Mapping[str, Any], **options: Unpack[VerifyOptions]) -> Report:
    """Raise AssertionError, with the report as its text, unless gradient checkpointing works on `model`.

    The options and the result are those of `verify`. A model that says it does not support checkpointing fails, and so
    does one of which nothing was measured.
    Raises VerifyError, as `verify` does, where no verdict is possible.
    """
    __tracebackhide__ = True
    report = verify(model, inputs, **options)
    if not report.ok:
        what = "was not measured" if report.status == "skipped" else "does not work"
        raise AssertionError(f"gradient checkpointing {what}\n\n{report}")
    return report
