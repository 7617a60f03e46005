"""Find the installed versions of packages that a verdict depends on, and of those that a bug report names.

Only torch is imported, for the accelerator.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout

from ckpt_surgery.optional import installed_version, is_installed, supported_range
from ckpt_surgery.text import error_line
from ckpt_surgery.version import __version__

PACKAGES = ("ckpt-surgery", "torch", "transformers")
"""The distributions whose versions a report names."""
REPORTED = (
    "torch",
    "transformers",
    "accelerate",
    "peft",
    "trl",
    "deepspeed",
    "lightning",
    "pytorch-lightning",
    "axolotl",
    "diffusers",
    "timm",
    "sentence-transformers",
    "bitsandbytes",
    "torchao",
    "triton",
    "numpy",
    "safetensors",
    "huggingface-hub",
    "tokenizers",
    "libcst",
    "typer",
    "rich",
    "packaging",
    "platformdirs",
)
"""The distributions whose versions a bug report names."""


def installed_versions(names: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Return the installed versions of distributions by name; those that are not installed are left out."""
    return {name: version for name in names if (version := installed_version(name)) is not None}


def bug_report_versions() -> dict[str, str]:
    """Return what a bug report names: versions, the platform and the accelerator."""
    found = {name: is_installed(name.replace("-", "_")) for name in REPORTED}
    versions = {name: "of an unknown version" if here else "not installed" for name, here in found.items()}
    return {
        "ckpt_surgery": __version__,
        "Python": platform.python_version(),
        "platform": platform.platform(),
        "accelerator": accelerator(),
        **versions,
        **{name: version for name, version in installed_versions(REPORTED).items() if version},
        "tested": supported_range(),
    }


def accelerator() -> str:
    """Return what torch was built for and the device that it sees, or why torch fails."""
    if not is_installed("torch"):
        return "none: torch is not installed"
    try:
        with redirect_stdout(sys.stderr):
            import torch

        builds = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip, "XPU": torch.version.xpu}
        device = "no device"
        if torch.cuda.is_available():
            device = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
        elif torch.accelerator.is_available():
            device = str(torch.accelerator.current_accelerator())
        return ", ".join([*(f"{name} {version}" for name, version in builds.items() if version), device])
    except (Exception, SystemExit) as error:  # a broken installation fails in many ways
        return f"torch fails: {error_line(error)}"
