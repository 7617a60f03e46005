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
    """Verify that gradient checkpointing works on a model, and fail otherwise.

    Args:
        model: The model, in training mode.
        inputs: Keyword arguments of its forward.
        options: Those of `verify`.

    Returns:
        The report of `verify`.

    Raises:
        AssertionError: Checkpointing does not work, the model says that it does not support it, or nothing was
            measured; the text is the report.
        VerifyError: No verdict is possible, as in `verify`.
    """
    __tracebackhide__ = True
    report = verify(model, inputs, **options)
    if not report.ok:
        what = "was not measured" if report.status == "skipped" else "does not work"
        raise AssertionError(f"gradient checkpointing {what}\n\n{report}")
    return report
