"""`fit` on scripts of TRL and Lightning that run out of memory without it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.planning.fit_scripts.runs import check_fit

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("package", "script", "limit", "off_by"),
    [
        ("trl", "fit_sft", 28_500_000, 1e-3),
        ("trl", "fit_dpo", 56_000_000, 5e-3),  # its loss is taken for a cross entropy
        ("lightning", "fit_lightning", 6_800_000, 1e-3),
    ],
)
def test_a_script_that_runs_out_of_memory_trains_with_fit(
    package: str, script: str, limit: int, off_by: float, tmp_path: Path
) -> None:
    pytest.importorskip(package)
    check_fit(tmp_path, f"tests.integrations.{script}", limit, off_by=off_by)
