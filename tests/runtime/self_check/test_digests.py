"""Digests of saved tensors differ wherever bits do, however they are summed."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from ckpt_surgery.runtime.self_check import digests
from ckpt_surgery.runtime.self_check.digests import Digest, DigestPlan

pytestmark = [pytest.mark.torch]

INTERPRETER = "TRITON_INTERPRET"
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.int64, torch.uint8, torch.bool]
SHAPES = [(37, 53), (), (1, 3), (2048, 17)]


@pytest.fixture(params=["memory", "rows", "kernel"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make sums in each way; Triton's interpreter runs that of GPUs."""
    if request.param != "memory":
        monkeypatch.setattr(digests, "_is_readable", lambda tensor: False)
    if request.param == "kernel":
        monkeypatch.setattr(digests, "sums_on_device", interpreted_kernel().sums_in_one_launch)
    return str(request.param)


def interpreted_kernel() -> Any:
    """Import the kernel's module in a process that imported Triton as an interpreter."""
    if INTERPRETER not in os.environ:
        pytest.skip("runs in a process of its own")
    return importlib.import_module("ckpt_surgery.runtime.self_check.digest_kernel")


def test_all_of_this_holds_for_the_kernel() -> None:
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    if INTERPRETER in os.environ:
        pytest.skip("is running")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "kernel"]
    run = subprocess.run(
        command, env={**os.environ, INTERPRETER: "1"}, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout


def digest(*tensors: Tensor, plan: DigestPlan | None = None, like: DigestPlan | None = None) -> Digest:
    return Digest.of(tensors, lambda tensor: False, plan, like)


def differ(ours: Digest, theirs: Digest, *parameters: nn.Parameter) -> bool:
    number, waiting = ours.compare(theirs, lambda: parameters)
    return number is not None or any(not torch.equal(*pair) for pair in waiting)


def some(dtype: torch.dtype, shape: tuple[int, ...] = (37, 53)) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 50).to(dtype)


def flipped(tensor: Tensor, place: int) -> Tensor:
    """Flip one bit of one byte of the tensor."""
    changed = tensor.clone()
    changed.view(-1).view(torch.uint8)[place] ^= 1
    return changed


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_bit_and_any_two_elements_count(way: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = some(dtype, shape)
    before = digest(tensor)
    assert not differ(before, digest(tensor.clone()))
    for place in {0, tensor.nbytes // 2, tensor.nbytes - 1}:
        assert differ(before, digest(flipped(tensor, place)))
    flat = tensor.clone().view(-1)
    for one, other in ((0, -1), (1, len(flat) // 2)) if len(flat) > 2 else ():
        swapped = flat.clone()
        swapped[one], swapped[other] = flat[other], flat[one]
        assert differ(before, digest(swapped.view(shape))) != torch.equal(swapped, flat)


def test_rows_and_parts_that_change_places_are_reported(way: str) -> None:
    tensor = some(torch.float32, (2048, 64))
    before = digest(tensor)
    for apart in (1, 32, 1024, 2047):
        swapped = tensor.clone()
        swapped[0], swapped[apart] = tensor[apart], tensor[0]
        assert differ(before, digest(swapped))
    assert differ(before, digest(tensor.roll(1024, 0)))


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.transpose(0, 1),
        lambda t: t.view(8, 4, 16).permute(2, 0, 1),
        lambda t: t[:, ::2],
        lambda t: t[1:, 3],
        lambda t: t[:, :1].expand(32, 1000),
        lambda t: t.view(-1)[1:],
        lambda t: t.bfloat16().view(-1)[1:13],
        lambda t: t.view(-1).unfold(0, 8, 3),
        lambda t: t.as_strided((4, 9, 2), (1, 1, 20)),
    ],
)
def test_views_are_summed_over_their_elements(way: str, view: Any) -> None:
    tensor = some(torch.float32, (32, 16))
    before, seen = digest(view(tensor)), torch.zeros(32, 16).bool()
    assert not differ(before, digest(view(tensor.clone())))
    for place in range(0, 32 * 16, 7):
        changed = tensor.clone()
        changed.view(-1)[place] += 1
        is_seen = not torch.equal(view(changed), view(tensor))
        seen.view(-1)[place] = is_seen
        assert differ(before, digest(view(changed))) == is_seen
    assert seen.any()


def test_tensors_of_other_classes_are_summed_over_what_they_hold(way: str) -> None:
    jagged: Tensor = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(4, 3)], layout=torch.jagged)
    sparse = some(torch.float32).relu().to_sparse()
    stored = torch.quantize_per_tensor(torch.arange(40.0), 1.0, 0, torch.qint8)
    turned = some(torch.complex64)
    pairs = [(jagged, jagged + 1), (sparse, sparse * 2), (stored, stored[torch.arange(40).flip(0)])]
    for tensor, other in (*pairs, (turned.conj(), turned), (turned.conj().imag, turned.imag)):
        assert not differ(digest(tensor), digest(tensor.clone()))
        assert differ(digest(tensor), digest(other))


def test_what_has_no_values_is_passed_over() -> None:
    freed = torch.ones(8)
    freed.untyped_storage().resize_(0)
    for tensor in (freed, torch.ones(8, device="meta"), torch.ones(0), torch.ones(4)[:0]):
        assert not differ(digest(tensor), digest(torch.empty_like(tensor, device="cpu")))


@pytest.mark.parametrize("view", [lambda t: t.t(), lambda t: t[:, :1].expand(4, 4), lambda t: t[:, ::2]])
def test_runs_are_compared_by_values_however_they_lie_in_memory(way: str, view: Any) -> None:
    tensor = view(some(torch.float32, (4, 4)))
    for ours, theirs in ((tensor, tensor.contiguous()), (tensor.contiguous(), tensor)):
        made = digest(ours)
        assert not differ(made, digest(theirs, like=made.plan))
    turned = some(torch.float32, (4, 4))
    made = digest(turned)
    assert differ(made, digest(turned.t(), plan=made.plan, like=made.plan))


def test_parameters_count_by_which_they_are() -> None:
    own, other, gathered = (nn.Parameter(torch.ones(4, 4)) for _ in range(3))
    views: list[Any] = [lambda p: p, lambda p: p.t()]
    for view in views:
        assert not differ(digest(view(own)), digest(view(own)), own, other)
        assert differ(digest(view(own)), digest(view(other)), own, other)
        assert not differ(digest(view(other)), digest(view(gathered)), own)
    turned = digest(own.t())
    for plan in (None, turned.plan):
        assert differ(turned, digest(own, plan=plan), own)


def test_a_run_that_ends_early_is_compared_as_far_as_it_came(way: str) -> None:
    tensors = [some(torch.float32, (n, 3)) for n in range(2, 6)]
    whole = digest(*tensors)
    assert not differ(whole, digest(*tensors[:2], plan=whole.plan))
    assert differ(whole, digest(tensors[0], tensors[1] + 1, plan=whole.plan))


@pytest.mark.parametrize(
    "other",
    [
        lambda a: (a, a + 1),
        lambda a: (a, a.t()),
        lambda a: (a.double(), a),
        lambda a: (a[:3], a),
        lambda a: (nn.Parameter(a), a),
    ],
)
def test_a_plan_is_taken_only_where_it_holds(other: Any) -> None:
    tensor = some(torch.float32, (4, 4))
    known = digest(tensor, tensor)
    assert digest(tensor, tensor, plan=known.plan).plan is known.plan
    unlike = other(tensor)
    made = digest(*unlike, plan=known.plan)
    assert made.plan is not known.plan
    assert not differ(made, digest(*unlike))


def test_the_kernel_is_launched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = interpreted_kernel()
    launches: list[Any] = []
    add_words = kernel._add_words

    class Launched:
        def __getitem__(self, grid: Any) -> Any:
            launches.append(grid)
            return add_words[grid]

    monkeypatch.setattr(kernel, "_add_words", Launched())
    tensors = [some(torch.bfloat16, (n, 7)) for n in (1, 3000, 9)]
    kernel.sums_in_one_launch(tensors, [tensor.nbytes for tensor in tensors])
    assert len(launches) == 1
