"""Checkpointing switched on and off by transformers, trainers and other libraries, after a surgery."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import torch
import transformers
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ckpt_surgery import Surgery, SurgeryError, explain, wrap_blocks
from ckpt_surgery.model_patches.release_names import FUNCTION
from ckpt_surgery.runtime.surgery import checkpointing
from ckpt_surgery.runtime.surgery.checkpointing import Checkpointing
from ckpt_surgery.runtime.surgery.options import SaveOption
from tests.measure.toys import Layer, Model, SureLayer, model_of
from tests.zoo.surgery_toys import KEPT, ONCE, Step, counted, differences, step
from tests.zoo.tiny_models import LENGTH, gpt_bigcode, layers_of, llama, t5, tokens

pytestmark = [pytest.mark.both, pytest.mark.torch]

RELEASE = int(transformers.__version__.partition(".")[0])
NAMES = ["gradient_checkpointing"] + ["activation_checkpointing"] * (RELEASE == 5)
either_name = pytest.mark.parametrize("name", NAMES)
only_in_5 = pytest.mark.skipif(RELEASE < 5, reason="transformers 4 has no such option")
# the newer release says of the older name only that it is older
pytestmark.append(pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed in v6.*:FutureWarning"))


def enable(model: Any, name: str = NAMES[-1], options: Mapping[str, Any] | None = None, **more: Any) -> None:
    getattr(model, f"{name}_enable")(**{f"{name}_kwargs": options}, **more)


def disable(model: Any, name: str = NAMES[-1]) -> None:
    getattr(model, f"{name}_disable")()


def is_on(model: Any) -> bool:
    (old,) = {bool(getattr(model, f"is_{name}")) for name in NAMES}
    return old


def trained(model: nn.Module) -> Step:
    return step(model, tokens(), blocks=layers_of(model))


def ways(model: nn.Module) -> list[Checkpointing | None]:
    return [vars(block)[FUNCTION] for block in layers_of(model).values()]


def one_way(model: nn.Module) -> Checkpointing:
    (way,) = set(map(id, ways(model)))
    (match,) = [function for function in ways(model)[:1] if id(function) == way]
    assert match is not None
    return match


def small_llama() -> Any:
    return llama(3)


MAKERS: list[Callable[[], Any]] = [small_llama, gpt_bigcode]
either_model = pytest.mark.parametrize("make", MAKERS)


NOTE = "asked for use_reentrant=True: runs non-reentrant, with the same gradients"


def by_argument(model: Any) -> Surgery:
    return wrap_blocks(model, use_reentrant=True)


def by_enable(model: Any, name: str = NAMES[-1]) -> Surgery:
    surgery = wrap_blocks(model)
    for _ in range(2):
        enable(model, name, {"use_reentrant": True})
    return surgery


def by_the_older_name(model: Any) -> Surgery:
    return by_enable(model, NAMES[0])


@either_model
@pytest.mark.parametrize("door", [by_argument, by_enable, by_the_older_name])
def test_reentrant_is_accepted_and_runs_non_reentrant(
    make: Callable[[], Any], door: Callable[[Any], Surgery], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, modes = make(), []

    def recording(*args: Any, use_reentrant: bool, **kwargs: Any) -> Any:
        modes.append(use_reentrant)
        return checkpoint(*args, use_reentrant=use_reentrant, **kwargs)

    monkeypatch.setattr(checkpointing, "checkpoint", recording)
    surgery = door(model)
    record = trained(model)
    assert differences(record, trained(make())) == []
    assert set(record.entries.values()) == {ONCE}
    assert set(modes) == {False}
    assert str(surgery).count(NOTE) == 1
    enable(model, options={"use_reentrant": False})
    assert NOTE not in str(surgery)
    assert is_on(model)


@either_name
def test_without_options_the_mode_is_the_releases(name: str) -> None:
    model = small_llama()
    surgery = wrap_blocks(model, use_reentrant=RELEASE == 5)
    enable(model, name)
    assert (NOTE in str(surgery)) == (RELEASE == 4)


@pytest.mark.parametrize("times_off", [0, 1, 2])
def test_what_the_options_leave_out_stays_as_wrap_blocks_was_told(times_off: int) -> None:
    def contexts() -> Any:
        raise AssertionError

    model = small_llama()
    surgery = wrap_blocks(model, context_fn=contexts, every_n=2, offload="cpu", preserve_rng_state="unsafe")
    for _ in range(times_off):
        disable(model)
        assert set(ways(model)) == {None}
    enable(model, options={"use_reentrant": False, "determinism_check": "none"})
    way = ways(model)[0]
    assert way is not None
    assert way.options.context_fn is contexts
    assert way.offloader is not None
    assert way.options.preserve_rng_state == "unsafe"
    assert dict(way.more) == {"determinism_check": "none"}
    assert [function is None for function in ways(model)] == [False, True, False]
    assert surgery.stats is not None


def test_ignoring_randomness_is_refused_under_dropout() -> None:
    model, quiet = model_of(Layer, Layer), model_of(SureLayer, SureLayer)
    options = {"use_reentrant": False, "preserve_rng_state": False}
    wrap_blocks(model)
    before = vars(model.layers[0])[FUNCTION]
    with pytest.raises(SurgeryError, match="preserve_rng_state=False while dropout of Layer acts at random"):
        enable(model, options=options)
    assert vars(model.layers[0])[FUNCTION] is before
    wrap_blocks(quiet)
    enable(quiet, options=options)
    assert vars(quiet.layers[0])[FUNCTION].options.preserve_rng_state is False


@only_in_5
@either_name
def test_every_nth_layer_counts_in_each_stack(name: str) -> None:
    model = small_llama()
    wrap_blocks(model)
    enable(model, name, every_n_layers=2)
    record = trained(model)
    assert list(record.entries.values()) == [ONCE, KEPT, ONCE]
    assert differences(record, trained(small_llama())) == []
    enable(model, name)
    assert set(trained(model).entries.values()) == {ONCE}


@only_in_5
def test_a_change_leaves_off_what_is_off_and_keeps_what_torch_was_given() -> None:
    model = small_llama()
    surgery = wrap_blocks(model)
    enable(model, options={"use_reentrant": False, "determinism_check": "none"}, every_n_layers=2)
    surgery.change(save=SaveOption((("*", ("attention",)),)))
    assert cast(Any, surgery.checkpointing).more == {"determinism_check": "none"}
    record = trained(model)
    assert list(record.entries.values()) == [ONCE, KEPT, ONCE]
    assert differences(record, trained(small_llama())) == []
    assert explain(model, tokens(8)).checkpointed == 2


@only_in_5
@either_name
def test_offloading_is_ours_and_works_without_an_accelerator(name: str) -> None:
    model = small_llama()
    surgery = wrap_blocks(model)
    enable(model, name, {"use_reentrant": False}, offload=True)
    inputs = tokens(8)
    record = step(model, inputs, blocks=layers_of(model))
    assert differences(record, step(small_llama(), inputs, blocks=layers_of(model))) == []
    assert set(record.entries.values()) == {ONCE}
    assert surgery.stats is not None
    assert surgery.stats.tensors == 2
    assert surgery.stats.bytes == 2 * 8 * LENGTH * 16 * 8


@pytest.mark.parametrize("given", [True, "cpu", "disk", "folder"])
def test_offload_among_the_options_is_ours_in_every_release(given: Any, tmp_path: Path) -> None:
    model, place = small_llama(), str(tmp_path) if given == "folder" else given
    surgery = wrap_blocks(model)
    enable(model, options={"use_reentrant": False, "offload": place})
    assert one_way(model).options.offload == ("cpu" if given is True else place)
    assert "offload" not in one_way(model).more
    inputs = tokens(8)
    record = step(model, inputs, blocks=layers_of(model))
    assert differences(record, step(small_llama(), inputs, blocks=layers_of(model))) == []
    assert surgery.stats is not None
    assert surgery.stats.tensors == 2


@pytest.mark.parametrize("given", [True, False, None])
def test_a_flag_leaves_the_place_for_offload_as_it_was(given: Any, tmp_path: Path) -> None:
    model = small_llama()
    surgery = wrap_blocks(model, offload=tmp_path)
    offloader = surgery.offloader
    enable(model, options={"use_reentrant": False, "offload": given})
    assert surgery.offloader is offloader is not None
    assert surgery.options.offload == str(tmp_path)


def test_a_place_that_is_none_is_refused_there_too() -> None:
    model = small_llama()
    wrap_blocks(model)
    before = one_way(model)
    with pytest.raises(SurgeryError, match="offload is 'dsk', and there is no such folder"):
        enable(model, options={"use_reentrant": False, "offload": "dsk"})
    assert one_way(model) is before


def test_another_place_gives_back_what_the_one_before_held(tmp_path: Path) -> None:
    model = small_llama()
    surgery = wrap_blocks(model, offload=tmp_path)
    step(model, tokens(8), blocks=layers_of(model))
    assert surgery.offloader is not None
    pool = cast(Any, surgery.offloader.transport).pool
    assert pool.bytes > 0
    enable(model, options={"use_reentrant": False, "offload": "disk"})
    assert pool.bytes == 0


@either_model
@either_name
def test_disabling_runs_the_blocks_as_they_are(make: Callable[[], Any], name: str) -> None:
    model = make()
    surgery = wrap_blocks(model)
    assert is_on(model)
    disable(model, name)
    assert not is_on(model)
    record = trained(model)
    assert set(record.entries.values()) == {KEPT}
    assert differences(record, trained(make())) == []
    assert "switched off" in str(surgery)
    enable(model, name)
    assert is_on(model)
    assert set(trained(model).entries.values()) == {ONCE}


def test_flags_are_true_to_the_facts_where_only_some_blocks_are_wanted() -> None:
    model = transformers.CLIPModel(
        transformers.CLIPConfig(
            text_config={"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8},
            vision_config={
                "hidden_size": 16,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "intermediate_size": 8,
                "image_size": 8,
                "patch_size": 4,
            },
        )
    )
    surgery = wrap_blocks(model, stacks="vision*")
    text, vision = model.text_model, model.vision_model

    def flags() -> tuple[bool, bool, bool]:
        return tuple(  # type: ignore[return-value]
            any(getattr(submodule, "gradient_checkpointing", False) for submodule in module.modules())
            for module in (model, text, vision)
        )

    assert flags() == (True, False, True)
    disable(model)
    assert flags() == (False, False, False)
    enable(model)
    assert flags() == (True, False, True)
    surgery.undo()
    assert flags() == (False, False, False)
    assert not any(hasattr(module, "_gradient_checkpointing_func") for module in model.modules())


def test_a_submodel_is_switched_by_itself() -> None:
    model = t5()
    wrap_blocks(model)
    disable(model)
    enable(model.decoder, options={"use_reentrant": False})
    blocks = {f"{side}.{n}": getattr(model, side).block[n] for side in ("encoder", "decoder") for n in range(2)}
    record = step(model, tokens(), blocks=blocks)
    assert list(record.entries.values()) == [KEPT, KEPT, ONCE, ONCE]
    disable(model.decoder)
    enable(model.encoder, options={"use_reentrant": True})
    assert list(step(model, tokens(), blocks=blocks).entries.values()) == [ONCE, ONCE, KEPT, KEPT]
    assert is_on(model.encoder)
    assert not is_on(model.decoder)


class Foreign:
    """A checkpointing function as in fine-tuning libraries: it queries the block it will run."""

    def __init__(self, *, reentrant: bool = False) -> None:
        self.asked: list[nn.Module] = []
        self.reentrant = reentrant

    def __call__(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        module = function.func.__self__
        self.asked.append(module)
        if any(parameter.requires_grad for parameter in module.parameters()):
            for argument in args:
                if isinstance(argument, Tensor) and argument.is_floating_point():
                    argument.requires_grad_(True)
        return checkpoint(function, *args, use_reentrant=self.reentrant, **kwargs)


@either_model
@pytest.mark.parametrize("frozen", [False, True], ids=["all of it trains", "the blocks alone train"])
def test_a_foreign_function_finds_the_block_and_keeps_working(make: Callable[[], Any], frozen: bool) -> None:
    model, plain, foreign = make(), make(), Foreign()
    surgery = wrap_blocks(model)
    for module in (model, plain):
        module.get_input_embeddings().requires_grad_(not frozen)
    model._set_gradient_checkpointing(enable=True, gradient_checkpointing_func=foreign)
    record = trained(model)
    assert differences(record, trained(plain)) == []
    assert set(record.entries.values()) == {ONCE}
    assert foreign.asked == list(layers_of(model).values())
    assert "checkpointed by Foreign" in str(surgery)
    enable(model, options={"use_reentrant": False})
    assert isinstance(one_way(model), Checkpointing)


def test_a_foreign_reentrant_function_is_refused() -> None:
    model = small_llama()
    surgery = wrap_blocks(model)
    surgery.enable(model, Foreign(reentrant=True))
    with pytest.raises(SurgeryError, match=r"^LlamaDecoderLayer model\.layers\.0 is checkpointed by a function that"):
        trained(model)
    surgery.enable(model, checkpoint)
    assert differences(trained(model), trained(small_llama())) == []


def test_a_foreign_function_is_called_through_every_enable() -> None:
    # Libraries replace transformers' function by a `partial` with the caller's options.
    model, calls = small_llama(), []

    def own(function: Any, *args: Any, note: str = "", **kwargs: Any) -> Any:
        calls.append(note)
        return checkpoint(function, *args, use_reentrant=False, **kwargs)

    wrap_blocks(model)
    model._set_gradient_checkpointing(True, partial(own, note="mine"))
    record = trained(model)
    assert differences(record, trained(small_llama())) == []
    assert calls == ["mine"] * 3


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = torch.randint(1, 32, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def losses_of_a_trainer(model: Any, folder: Path, **options: Any) -> list[float]:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=3,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        logging_steps=1,
        logging_strategy="steps",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=3,
        **options,
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=Rows())
    trainer.train()
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


@either_model
@pytest.mark.parametrize("options", [None, {"use_reentrant": True}])
def test_transformers_trainer_trains_with_every_block_recomputed(
    make: Callable[[], Any], options: dict[str, Any] | None, tmp_path: Path
) -> None:
    expected = losses_of_a_trainer(make(), tmp_path / "plain")
    model = make()
    surgery = wrap_blocks(model)
    with counted(layers_of(model)) as entered:
        losses = losses_of_a_trainer(
            model, tmp_path / "ours", gradient_checkpointing=True, gradient_checkpointing_kwargs=options
        )
    assert len(expected) == 3
    assert expected[0] != expected[2]
    assert losses == pytest.approx(expected, rel=1e-9)
    assert dict(entered) == dict.fromkeys(layers_of(model), 3 * 2)
    assert is_on(model)
    surgery.undo()


@pytest.mark.parametrize("make", MAKERS)
def test_without_a_surgery_the_trainer_is_silent_if_nothing_is_recomputed(
    make: Callable[[], Any], tmp_path: Path
) -> None:
    model = make()
    silent = RELEASE == 4 and make is gpt_bigcode
    with counted(layers_of(model)) as entered, warnings.catch_warnings():
        losses_of_a_trainer(model, tmp_path, gradient_checkpointing=True)
    assert is_on(model)
    assert set(entered.values()) == {3 if silent else 3 * 2}


def test_a_model_that_says_it_cannot_checkpoint_can_after_a_surgery() -> None:
    class Refusing(Model):
        supports_gradient_checkpointing = False

    model, plain = (model_of(SureLayer, SureLayer, whole=Refusing) for _ in range(2))
    with pytest.raises(ValueError, match="does not support"):
        enable(plain)
    surgery: Surgery = wrap_blocks(model)
    enable(model, options={"use_reentrant": True})
    assert set(step(model).entries.values()) == {ONCE}
    surgery.undo()
    with pytest.raises(ValueError, match="does not support"):
        enable(model)
