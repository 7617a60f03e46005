"""The offload options of `wrap_blocks` on models: where to, how much is pinned, and what undo gives back."""

from __future__ import annotations

import copy
import gc
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import Tensor, nn

from ckpt_surgery import Surgery, SurgeryError, SurgeryWarning, wrap_blocks
from ckpt_surgery.runtime.offload import buffer_pool
from ckpt_surgery.runtime.offload.buffer_pool import BufferPool, PinnedPool
from ckpt_surgery.runtime.offload.disk_transport import MappedFiles, large_temporary_folder
from ckpt_surgery.runtime.offload.host_transport import HostTransport
from tests.runtime.streams import Pinning, instead_of_the_processor
from tests.zoo.surgery_toys import Step, differences, step
from tests.zoo.tiny_models import layers_of, llama, tokens

pytestmark = [
    pytest.mark.both,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:the folder for offload, .*, is in memory itself"),
]

SOME = 3
"""The blocks of the model, of which the last one's input stays."""


def pool_of(surgery: Any) -> BufferPool:
    assert isinstance(surgery, Surgery)
    assert surgery.offloader is not None
    transport = surgery.offloader.transport
    assert isinstance(transport, HostTransport)
    return transport.pool


def trained(model: Any) -> Step:
    return step(model, tokens(8), blocks=layers_of(model))


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_with_files_gradients_are_those_without_offload(tied: bool, tmp_path: Path) -> None:
    model = llama(SOME, tie_word_embeddings=tied)
    expected = trained(llama(SOME, tie_word_embeddings=tied))
    with wrap_blocks(model, offload=tmp_path) as surgery:
        for _ in range(2):
            assert differences(trained(model), expected) == []
        assert "inputs kept on disk" in str(surgery)
        assert surgery.stats is not None
        assert (surgery.stats.tensors, surgery.stats.no_room) == (2 * (SOME - 1), 0)
        assert surgery.options.offload == str(tmp_path)
        assert pool_of(surgery).bytes > 0
        pool = pool_of(surgery)
    gc.collect()
    assert pool.bytes == 0
    assert not [*tmp_path.iterdir()]


def test_without_a_folder_files_are_where_the_system_wants_them() -> None:
    pool = pool_of(wrap_blocks(llama(), offload="disk"))
    assert isinstance(pool, MappedFiles)
    assert pool.folder == large_temporary_folder()


def test_a_folder_is_meant_as_seen_from_where_wrap_blocks_was_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.chdir(tmp_path)
    model = llama(SOME)
    surgery = wrap_blocks(model, offload="scratch")
    monkeypatch.chdir("/")
    trained(model)
    assert surgery.stats is not None
    assert surgery.stats.no_room == 0


@pytest.mark.parametrize(
    ("given", "limit"), [("8GB", 8 * 10**9), ("1.5 GiB", 3 * 2**29), (4096, 4096), (0, 0), (None, None)]
)
def test_the_bound_on_pinned_memory_is_that_of_the_pool(given: Any, limit: int | None) -> None:
    surgery = wrap_blocks(llama(), offload="cpu", offload_pinned=given)
    pool = pool_of(surgery)
    assert isinstance(pool, PinnedPool)
    assert surgery.options.offload_pinned == pool.given_limit == limit
    again = pool_of(copy.deepcopy(surgery.model)._ckpt_surgery)
    assert isinstance(again, PinnedPool)
    assert again is not pool
    assert again.given_limit == limit


@pytest.mark.parametrize("given", ["8", "lots", -1, True, 1.5, "-1GB", b"8GB"])
def test_what_is_no_size_is_refused(given: Any) -> None:
    with pytest.raises(SurgeryError, match=r"offload_pinned is .*: give bytes as an integer, or a size with its unit"):
        wrap_blocks(llama(), offload="cpu", offload_pinned=given)


@pytest.mark.parametrize("given", [True, False, 3, "", b"/tmp", ["cpu"]])
def test_what_is_no_place_is_refused(given: Any) -> None:
    with pytest.raises(SurgeryError, match=r'offload is .*: give "cpu", "disk" or a folder, or None'):
        wrap_blocks(llama(), offload=given)


def test_nothing_is_pinned_with_files(tmp_path: Path) -> None:
    with pytest.raises(SurgeryError, match=r"offload_pinned is for offload=.cpu."):
        wrap_blocks(llama(), offload=tmp_path, offload_pinned="1GB")


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_of_a_model_have_separate_files(copied: Any, tmp_path: Path) -> None:
    model = llama(SOME)
    surgery = wrap_blocks(model, offload=tmp_path)
    expected = trained(model)
    other = copied(model)
    assert differences(trained(other), expected) == []
    theirs = pool_of(other._ckpt_surgery)
    assert isinstance(theirs, MappedFiles)
    assert theirs.folder == str(tmp_path)
    assert theirs.bytes == pool_of(surgery).bytes > 0
    other._ckpt_surgery.undo()
    gc.collect()
    assert (theirs.bytes, pool_of(surgery).bytes > 0) == (0, True)


def test_a_pickle_that_is_read_where_the_folder_is_not_trains(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    model = llama(SOME)
    wrap_blocks(model, offload=folder)
    expected, saved = trained(model), pickle.dumps(model)
    folder.rmdir()
    with pytest.warns(SurgeryWarning, match="stay on the device"):
        assert differences(trained(pickle.loads(saved)), expected) == []


@pytest.mark.parametrize("way", ["undo", "switched off", "wrapped again", "collected"])
def test_what_was_held_for_later_steps_is_given_back(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_pool, "pinned_buffer", pin := Pinning())
    model = llama(SOME)
    surgery = wrap_blocks(model, offload="cpu", self_check="never")
    with monkeypatch.context() as patch:
        instead_of_the_processor(patch)
        loss = model(**tokens(8)).loss
        loss.backward()
    assert pin.pinned > 0
    match way:
        case "undo":
            surgery.undo()
        case "switched off":
            surgery.disable(model)
        case "wrapped again":
            wrap_blocks(model, offload="cpu")
        case _:
            del surgery, model, loss
    gc.collect()
    assert pin.pinned == 0


def test_a_graph_that_outlives_the_surgery_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_pool, "pinned_buffer", pin := Pinning())
    model = llama(SOME)
    with monkeypatch.context() as patch:
        instead_of_the_processor(patch)
        with wrap_blocks(model, offload="cpu", self_check="never"):
            loss = model(**tokens(8)).loss
        assert pin.pinned > 0
        loss.backward()
    del loss
    gc.collect()
    assert pin.pinned == 0


def gradients_of(model: Any) -> dict[str, Any]:
    model(**tokens(8)).loss.backward()
    return {name: value.grad for name, value in model.named_parameters()}


def test_threads_train_their_own_models(tmp_path: Path) -> None:
    models = [llama(SOME) for _ in range(3)]
    for model in models:
        wrap_blocks(model, offload=tmp_path, self_check="never")
    expected = trained(llama(SOME)).gradients
    with ThreadPoolExecutor(3) as pool:
        for gradients in pool.map(gradients_of, models):
            torch.testing.assert_close(gradients, expected)


class Latents(nn.Module):
    """A learned input, given to the first block as it is or as a view, as in resamplers."""

    def __init__(self, *, expanded: bool) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(3)))
        self.expanded = expanded
        self.layers = nn.ModuleList(NormedLatents() for _ in range(2))

    def forward(self, rows: int) -> Tensor:
        latents: Tensor = self.latents.expand(rows, 4, 8) if self.expanded else self.latents
        for layer in self.layers:
            latents = layer(latents)
        return latents.square().sum()


class NormedLatents(nn.Module):
    """A block that saves its input for its backward."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, latents: Tensor) -> Tensor:
        return latents * latents.square().mean(-1, keepdim=True).rsqrt() * self.scale


@pytest.mark.parametrize("expanded", [False, True], ids=["a parameter", "a view of it"])
def test_a_block_that_is_given_a_parameter_passes_its_check(expanded: bool) -> None:
    results = []
    for offload in (None, "cpu"):
        model = Latents(expanded=expanded).train()
        wrap_blocks(model, offload=offload, self_check="always", blocks=NormedLatents)
        for _ in range(2):
            model(3).backward()
        results.append([parameter.grad for parameter in model.parameters()])
    assert all(gradient is not None for gradient in results[0])
    assert all(map(torch.equal, *results))
