"""The plugin for axolotl and the callback in LLaMA-Factory, against those packages' interfaces."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import WRAPPER_ASSIGNMENTS, partial, wraps
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from torch.utils.checkpoint import checkpoint

from ckpt_surgery import CheckpointGuard
from ckpt_surgery.guarding.asked_options import wrap_as_asked
from ckpt_surgery.runtime.surgery.checkpointing import Checkpointing
from ckpt_surgery.runtime.surgery.options import SurgeryOptions
from tests.guarding.test_trainer import Rows
from tests.zoo.tiny_models import llama

pytestmark = [pytest.mark.both, pytest.mark.torch]


def trained(model: Any, callbacks: list[Any], folder: Path) -> Any:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=4, report_to=[], use_cpu=True, per_device_train_batch_size=2
    )
    Trainer(model=model, args=arguments, train_dataset=Rows(), callbacks=callbacks).train()
    return model


class BasePlugin:
    """The parts of axolotl 0.19.0's axolotl/integrations/base.py that a plugin with callbacks uses."""

    def add_callbacks_pre_trainer(self, cfg: Any, model: Any) -> list[Any]:
        return []

    def add_callbacks_post_trainer(self, cfg: Any, trainer: Any) -> list[Any]:
        return []


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the plugin as axolotl does: from the name in `plugins:`, module and class, without arguments."""
    base = ModuleType("axolotl.integrations.base")
    vars(base)["BasePlugin"] = BasePlugin
    for name in ("axolotl", "axolotl.integrations"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, base.__name__, base)
    name = "ckpt_surgery.guarding.axolotl"
    monkeypatch.delitem(sys.modules, name, raising=False)
    yield import_module(name).CheckpointGuardPlugin()
    sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("checkpointing", "offloading", "wrapped"),
    [(True, None, True), (None, None, False), ("offload", None, False), (True, "legacy", False)],
)
def test_the_plugin_guards_and_wraps_what_axolotl_checkpoints(
    plugin: Any, tmp_path: Path, checkpointing: object, offloading: object, wrapped: bool
) -> None:
    cfg = SimpleNamespace(gradient_checkpointing=checkpointing, activation_offloading=offloading)
    model = llama(3).float()
    assert isinstance(plugin, BasePlugin)
    assert plugin.add_callbacks_post_trainer(cfg, None) == []
    (callback,) = plugin.add_callbacks_pre_trainer(cfg, model)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": True})
    trained(model, [callback], tmp_path)
    assert callback.report.ok
    assert callback.report.steps == 4
    assert ([row.counts for row in callback.report.blocks] == [(1, 1)] * 3) is bool(checkpointing)
    assert not any("forward" in vars(layer) for layer in model.model.layers)


def only_trainable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function as llamafactory 0.9.5 does in model/model_utils/checkpointing.py."""

    @wraps(function, assigned=(*WRAPPER_ASSIGNMENTS, "__self__"))
    def called(block: Any, *args: Any, **kwargs: Any) -> Any:
        return function(block, *args, **kwargs)

    return called


@pytest.mark.parametrize(("given", "place"), [(True, "cpu"), ("disk", "disk")])
def test_offload_among_the_options_of_a_script_is_taken_over(given: Any, place: str) -> None:
    model = llama(3)
    function = partial(checkpoint, use_reentrant=False, offload=given)
    model._set_gradient_checkpointing(enable=True, gradient_checkpointing_func=function)
    with wrap_as_asked(model) as surgery:
        assert (surgery.options.use_reentrant, surgery.options.offload) == (False, place)


def test_options_of_torchs_function_are_kept_unless_given() -> None:
    model = llama(3)
    options: dict[str, Any] = {"context_fn": lambda: (nullcontext(), nullcontext()), "determinism_check": "none"}
    function = partial(checkpoint, use_reentrant=False, **options)
    model._set_gradient_checkpointing(enable=True, gradient_checkpointing_func=function)
    with wrap_as_asked(model, use_reentrant=True) as surgery:
        assert surgery.options.use_reentrant
        assert surgery.options.context_fn is options["context_fn"]
        assert cast("Checkpointing", surgery.checkpointing).more == {"determinism_check": "none"}


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_callback_takes_the_options_that_llama_factory_sets(tmp_path: Path, reentrant: bool) -> None:
    model = llama(3).float()
    function = only_trainable(partial(checkpoint, use_reentrant=reentrant))
    model._set_gradient_checkpointing(enable=True, gradient_checkpointing_func=function)
    model.enable_input_require_grads()
    with wrap_as_asked(model) as surgery:
        assert surgery.options.use_reentrant is reentrant
    callback = CheckpointGuard(wrap=True, on_fault="raise")
    trained(model, [callback], tmp_path)
    assert callback.report is not None
    assert callback.report.proved == 3
    assert model.model.layers[0]._gradient_checkpointing_func is function, "it is back after the training"


def test_a_function_of_unknown_origin_has_no_options(tmp_path: Path) -> None:
    model = llama(3)
    model._set_gradient_checkpointing(enable=True, gradient_checkpointing_func=lambda block, *args: block(*args))
    with wrap_as_asked(model) as surgery:
        assert surgery.options == SurgeryOptions()
