"""What a run knows of models that its script has let go of: they are gone, and their reports are kept."""

from __future__ import annotations

import gc
from weakref import ref

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from ckpt_surgery.guarding.takeover import Takeover, TakeoverOptions
from tests.guarding.test_guard import train
from tests.measure.toys import SureLayer, model_of
from tests.zoo.tiny_models import llama, tokens

pytestmark = [pytest.mark.both, pytest.mark.torch]


@pytest.mark.parametrize("wrap", [True, False])
def test_a_model_is_gone_and_its_report_is_kept(wrap: bool) -> None:
    takeover = Takeover(TakeoverOptions(wrap), print)
    takeover.install()
    try:
        for layers in (2, 3):
            model = model_of(*[SureLayer] * layers)
            train(model, 4)
            last, model = ref(model), model_of(SureLayer)
            gc.collect()
            assert last() is None
    finally:
        takeover.remove()
    assert [trained.name for trained in takeover.trained] == ["Model", "Model"]
    for layers, trained in zip((2, 3), takeover.trained, strict=True):
        assert trained.report is not None
        assert (trained.report.steps, len(trained.report.blocks)) == (4, layers)
        assert (f"{layers} of {layers} blocks checkpointed" in trained.table) == wrap
        assert trained.surgery is None


def test_the_table_of_a_model_that_is_gone_has_what_its_policy_kept() -> None:
    takeover = Takeover(TakeoverOptions(wrap=True, wrap_options={"save": ["attention"]}), print)
    takeover.install()
    try:
        model = llama(2, use_cache=False).train()
        model(**tokens()).loss.backward()
        del model
        gc.collect()
    finally:
        takeover.remove()
    (trained,) = takeover.trained
    assert trained.surgery is None
    assert "2 results in the last step" in trained.table


def test_a_model_that_cannot_be_guarded_keeps_what_was_said_of_it() -> None:
    takeover = Takeover(TakeoverOptions(wrap=False), lambda _: None)
    takeover.install()
    try:
        model = model_of(SureLayer)
        vars(model.layers[0])["_orig_mod"] = None  # as compiled ones have
        train(model, 1)
    finally:
        takeover.remove()
    (trained,) = takeover.trained
    assert (trained.report, trained.table) == (None, "")
    assert "is compiled" in trained.problems[0]
