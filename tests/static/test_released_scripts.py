"""Released training code: every fault that the rules for scripts find in it, each reviewed by a person."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_surgery.static.check import check
from tests.releases import OTHER_SHA256, ReleaseError, fetch_package

CODES = ("CKPT101", "CKPT102", "CKPT103", "CKPT104", "CKPT105", "CKPT106")
RELEASED: dict[tuple[str, str], list[tuple[str, str, int, str]]] = {
    ("trl", "1.12.0"): [
        ("CKPT101", "trainer/dpo_trainer.py", 1768, "DPOTrainer.compute_loss"),
        ("CKPT101", "trainer/kto_trainer.py", 1760, "KTOTrainer.compute_loss"),
    ],
    ("accelerate", "1.15.0"): [],
}
"""Every safe and unsafe finding. The two of TRL are its issue 7245: with a fused loss, DPO and KTO ran the unwrapped
model, and no gradient was synchronised."""


@pytest.mark.slow
@pytest.mark.parametrize("pin", RELEASED, ids=" ".join)
def test_what_is_found_in_released_training_code_is_true(pin: tuple[str, str]) -> None:
    source = fetch_package(*pin)
    result = check([source], select=CODES, cache=False)
    assert result.problems == ()
    findings = [(f.code, Path(f.path).relative_to(source).as_posix(), f.line, f.class_name) for f in result.faults]
    assert findings == RELEASED[pin]


def test_every_pinned_package_is_looked_at() -> None:
    assert RELEASED.keys() == OTHER_SHA256.keys()


def test_a_package_without_a_pin_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(ReleaseError, match=r"trl 0\.1 has no pinned hash: .* trl 1\.12\.0"):
        fetch_package("trl", "0.1")
