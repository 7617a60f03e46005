"""diffusers: a denoising loop, as in its examples, with accelerate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("diffusers")

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from diffusers import DDPMScheduler, UNet2DConditionModel
from safetensors.torch import load_file

from ckpt_surgery import Guard, Surgery, guard, wrap_blocks

pytestmark = pytest.mark.torch


def unet() -> Any:
    torch.manual_seed(0)
    return UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(8, 16),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        cross_attention_dim=8,
        attention_head_dim=4,
        norm_num_groups=4,
    )


def train(folder: Path, guarding: Callable[[Any], tuple[Surgery | None, Guard | None]]) -> tuple[list[float], Any]:
    accelerator, scheduler, raw = Accelerator(cpu=True), DDPMScheduler(num_train_timesteps=10), unet()
    raw.enable_gradient_checkpointing()
    surgery, watching = guarding(raw)
    model, optimizer = accelerator.prepare(raw, torch.optim.AdamW(raw.parameters(), 1e-3))
    model.train()
    torch.manual_seed(1)
    losses = []
    for _ in range(4):
        latents, noise, words = torch.randn(2, 4, 8, 8), torch.randn(2, 4, 8, 8), torch.randn(2, 3, 8)
        times = torch.randint(0, 10, (2,))
        with accelerator.accumulate(model):
            made = model(scheduler.add_noise(latents, noise, times), times, encoder_hidden_states=words).sample
            loss = torch.nn.functional.mse_loss(made, noise)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    accelerator.unwrap_model(model).save_pretrained(folder)
    report = watching.report() if watching is not None else None
    if watching is not None:
        watching.remove()
    if surgery is not None:
        surgery.undo()
    assert raw.is_gradient_checkpointing, "the library's own switch is as it was"
    return losses, report


def weights(folder: Path) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = load_file(folder / "diffusion_pytorch_model.safetensors")
    return loaded


def test_a_wrapped_denoising_loop_trains_and_saves_as_without_it(tmp_path: Path) -> None:
    bare, _ = train(tmp_path / "bare", lambda model: (None, None))
    seen, report = train(
        tmp_path / "wrapped", lambda model: (wrap_blocks(model), guard(model, prove=False, on_fault="raise"))
    )
    assert seen == bare
    assert all(row.counts == (1, 1) for row in report.blocks)
    saved, expected = weights(tmp_path / "wrapped"), weights(tmp_path / "bare")
    assert list(saved) == list(expected)
    assert all(torch.equal(saved[key], expected[key]) for key in expected)


@pytest.mark.parametrize("wrapped", [False, True])
def test_its_blocks_are_proved_and_losses_are_those_without_it(tmp_path: Path, wrapped: bool) -> None:
    # Also where skip connections use what a block uses: their gradients add up in the order they have without it.
    # Which modules diffusers checkpoints itself is known after the first step; it proves one that holds some.
    bare, _ = train(tmp_path / "bare", lambda model: (None, None))
    seen, report = train(
        tmp_path / "guarded", lambda model: (wrap_blocks(model) if wrapped else None, guard(model, on_fault="raise"))
    )
    assert seen == bare
    assert report.proved == (4 if wrapped else 3)
    saved, expected = weights(tmp_path / "guarded"), weights(tmp_path / "bare")
    assert all(torch.equal(saved[key], expected[key]) for key in expected)
