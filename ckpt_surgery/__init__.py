"""ckpt_surgery: find where gradient checkpointing silently fails in transformers models, repair it, and prove it.

The public names are imported when they are first used, so that `import ckpt_surgery` costs nothing and
static checks never load torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckpt_surgery.runtime.errors import SurgeryError, SurgeryWarning
    from ckpt_surgery.runtime.surgery import Surgery
    from ckpt_surgery.runtime.wrap import wrap_blocks
    from ckpt_surgery.source.analyze import check
    from ckpt_surgery.source.results import ApplyResult, CheckResult, FileChange, Problem, Progress
    from ckpt_surgery.source.rewrite import apply
    from ckpt_surgery.testing import assert_checkpointing
    from ckpt_surgery.verification.arguments import VerifyError
    from ckpt_surgery.verification.results import Report
    from ckpt_surgery.verification.verify import verify
    from codemods.finding import Applicability, Edit, Finding

__version__ = "0.1.0"

__all__ = [
    "Applicability",
    "ApplyResult",
    "CheckResult",
    "Edit",
    "FileChange",
    "Finding",
    "Problem",
    "Progress",
    "Report",
    "Surgery",
    "SurgeryError",
    "SurgeryWarning",
    "VerifyError",
    "__version__",
    "apply",
    "assert_checkpointing",
    "check",
    "verify",
    "wrap_blocks",
]

_HOMES = {
    "Applicability": "codemods.finding",
    "ApplyResult": "ckpt_surgery.source.results",
    "CheckResult": "ckpt_surgery.source.results",
    "Edit": "codemods.finding",
    "FileChange": "ckpt_surgery.source.results",
    "Finding": "codemods.finding",
    "Problem": "ckpt_surgery.source.results",
    "Progress": "ckpt_surgery.source.results",
    "Report": "ckpt_surgery.verification.results",
    "Surgery": "ckpt_surgery.runtime.surgery",
    "SurgeryError": "ckpt_surgery.runtime.errors",
    "SurgeryWarning": "ckpt_surgery.runtime.errors",
    "VerifyError": "ckpt_surgery.verification.arguments",
    "apply": "ckpt_surgery.source.rewrite",
    "assert_checkpointing": "ckpt_surgery.testing",
    "check": "ckpt_surgery.source.analyze",
    "verify": "ckpt_surgery.verification.verify",
    "wrap_blocks": "ckpt_surgery.runtime.wrap",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
