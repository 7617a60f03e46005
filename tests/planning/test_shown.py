"""An explanation as text and as a page: the wording, the drawings, the hints, and the page in a browser."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("torch")

from ckpt_surgery.planning.allocations import AllocationKind, StepPhase
from ckpt_surgery.planning.answer import LeverPeak, StateLever, answer_line
from ckpt_surgery.planning.devices import Device
from ckpt_surgery.planning.explanation import Explanation
from ckpt_surgery.planning.figures import Holder, MemoryTimeline, Peak
from ckpt_surgery.planning.page import Box, timeline_svg, treemap_svg
from ckpt_surgery.planning.text import Hint, Remedy
from tests.report.browser import Browser, running_browser
from tests.snapshots import check_snapshot

SNAPSHOTS = Path(__file__).parent / "snapshots"
MIB = 2**20
MLP = Holder(
    6 * MIB, 4, "model.layers.*.mlp", "aten.mul", "model.py:12", "aten.mm", "model.py:13", "float32", (2, 8, 64)
)
LOSS = Holder(
    4 * MIB, 1, "", "aten._log_softmax", "loss.py:3", "aten._log_softmax", "loss.py:3", "float32", (16, 65536)
)
WEIGHTS = Holder(5 * MIB, 4, "model.layers.*.attn", "aten._softmax", "a.py:1", "", "", "float32", (2, 4, 64, 64))


def explanation() -> Explanation:
    """Explain a step: ten MiB kept, twelve at the peak, and eight that live all through it."""
    by_kind = {AllocationKind.KEPT: 10 * MIB, AllocationKind.BACKWARD: 2 * MIB}
    return Explanation(
        model="Small<Model>",
        blocks=4,
        checkpointed=0,
        parameter_bytes=2 * MIB,
        buffer_bytes=0,
        gradient_bytes=2 * MIB,
        optimizer_bytes=6 * MIB,
        kept_bytes=10 * MIB,
        peak=Peak(20 * MIB, by_kind, StepPhase.BACKWARD, "aten.mm", "model.layers.3.mlp", "model.py:13", (MLP, LOSS)),
        holders=(MLP, LOSS),
        timeline=MemoryTimeline(
            (1, 2, 3, 4),
            {AllocationKind.KEPT: (4 * MIB, 10 * MIB, 10 * MIB, 0), AllocationKind.BACKWARD: (0, 0, 2 * MIB, 0)},
            2,
        ),
        forward_flops=10,
        backward_flops=20,
        drawn=0,
        seconds=0.0,
    )


def test_the_text_is_its_snapshot() -> None:
    check_snapshot(f"{explanation()}\n", SNAPSHOTS / "explanation.txt")


def test_the_page_is_its_snapshot() -> None:
    page = re.sub(r"<style\b.*?</style>", "<style></style>", explanation().to_html(), flags=re.DOTALL)
    check_snapshot(re.sub(r">\s*<", ">\n<", page), SNAPSHOTS / "explanation.html")


def test_the_text_has_at_most_40_lines_however_much_a_step_holds() -> None:
    names = [f"model.layers.*.a_module_with_quite_a_long_name_{at}.of_several_parts" for at in range(50)]
    file = "a_file_with_a_rather_long_name.py"
    long = replace(MLP, line=f"{file}:1234", kept_at=f"{file}:1235")
    text = str(replace(explanation(), holders=tuple(replace(long, module=name) for name in names), drawn=3))
    assert len(text.splitlines()) <= 40, text
    assert "3 operators read what weights decide" in text


@pytest.mark.parametrize("seed", range(20))
def test_a_treemap_fills_its_box_in_proportion_and_nothing_overlaps(seed: int) -> None:
    source = random.Random(seed)
    weights = sorted((source.uniform(1, 1000) for _ in range(source.randint(1, 40))), reverse=True)
    boxes = Box(0, 0, 720, 260).divided(weights)
    assert treemap_faults(weights, boxes) == []


def treemap_faults(weights: list[float], boxes: list[Box]) -> list[str]:
    """Describe the faults of the parts of a box of 720 x 260."""
    near, faults = 1e-6, []
    for at, (weight, box) in enumerate(zip(weights, boxes, strict=True)):
        if abs(box.width * box.height / (720 * 260) - weight / sum(weights)) > near:
            faults.append(f"area {at}")
        if min(box.left, box.top) < -near or box.left + box.width > 720 + near or box.top + box.height > 260 + near:
            faults.append(f"outside {at}")
        for to, other in enumerate(boxes[:at]):
            wide = min(box.left + box.width, other.left + other.width) - max(box.left, other.left)
            high = min(box.top + box.height, other.top + other.height) - max(box.top, other.top)
            if wide > near and high > near:
                faults.append(f"overlap {to} {at}")
    return faults


def test_the_areas_of_the_timeline_add_up_to_the_peak() -> None:
    step = explanation()
    areas = step.timeline.stacked(step.always_bytes)
    assert [kind for kind, _, _ in areas] == [AllocationKind.KEPT, AllocationKind.BACKWARD]
    assert areas[0][1] == [step.always_bytes] * 4
    assert areas[1][1] == areas[0][2]
    assert max(areas[-1][2]) == step.peak_bytes


def test_an_empty_step_is_drawn_as_words() -> None:
    empty = replace(explanation(), timeline=MemoryTimeline((), {}, 0), holders=())
    assert timeline_svg(empty, 10) == "<p>The step allocates nothing.</p>"
    assert treemap_svg(()) == "<p>Nothing.</p>"
    assert "(loss)" not in str(empty)


def test_hints_follow_from_what_is_alive_at_the_peak() -> None:
    step = explanation()
    others = Hint(Remedy.LORA, 6 * MIB), Hint(Remedy.FUSED_LOSS, 4 * MIB)
    assert Hint.of(step) == (Hint(Remedy.CHECKPOINT, 6 * MIB), *others)
    assert Hint.of(replace(step, checkpointed=4)) == (Hint(Remedy.TILE_MLP, 6 * MIB), *others)
    assert Hint.of(replace(step, blocks=0)) == others
    gradients = replace(step.peak, holders=(replace(MLP, gradient=True), LOSS))
    assert Hint.of(replace(step, checkpointed=4, peak=gradients)) == others
    adapted = replace(step, checkpointed=4, optimizer_bytes=0, frozen_bytes=3 * MIB)
    assert Hint.of(adapted)[2:] == (Hint(Remedy.FOUR_BITS, 3 * MIB),)
    eager = replace(step, checkpointed=4, optimizer_bytes=0, peak=replace(step.peak, holders=(WEIGHTS,)))
    assert Hint.of(eager) == (Hint(Remedy.SDPA, 5 * MIB),)
    assert Hint.of(replace(eager, peak=replace(eager.peak, bytes=51 * MIB))) == ()


def of_peak(gibibytes: float, checkpointed: int = 0, optimizer: float = 0.0) -> Explanation:
    step = explanation()
    return replace(
        step,
        checkpointed=checkpointed,
        optimizer_bytes=round(optimizer * 2**30),
        peak=replace(step.peak, bytes=round(gibibytes * 2**30)),
    )


@pytest.mark.parametrize(
    ("steps", "card", "said"),
    [
        ([of_peak(30), of_peak(18, 4)], "4090", "Fits on 4090 (24 GB) with checkpointing: 30.0 GiB without"),
        ([of_peak(19), of_peak(18, 4)], "4090", "Fits on 4090 (24 GB) as it is: "),
        ([of_peak(60), of_peak(50, 4)], "4090", "Does not fit on 4090 (24 GB), but on H100 (80 GB): "),
        ([of_peak(60), of_peak(50, 4)], None, "Fits on H100 (80 GB) as it is, the smallest common card: "),
        ([of_peak(500)], None, "Fits on no common card: 500 GiB without checkpointing."),
        ([of_peak(30), of_peak(18, 4)], None, "Most effect: checkpointing (`wrap_blocks`), 12.0 GiB."),
        (
            [of_peak(60, 0, 30), of_peak(59, 4, 30)],
            "H100",
            "Most effect: LoRA (`--lora 16`), up to 30.0 GiB; checkpointing alone saves 1.0 GiB and is not the lever",
        ),
    ],
)
def test_the_answer_says_whether_it_fits_and_what_has_the_most_effect(
    steps: list[Explanation], card: str | None, said: str
) -> None:
    assert said in answer_line(steps, Device.of(card) if card else None)


@pytest.mark.parametrize(
    ("before", "peak", "card", "said"),
    [
        (
            60,
            20,
            None,
            "LoRA (`--lora 16`), 39.0 GiB less: 20.0 GiB with checkpointing; checkpointing alone saves 1.0",
        ),
        (60, 20, "4090", "20.0 GiB with checkpointing, which fits; checkpointing alone saves 1.0 GiB and is not the"),
        (80, 20, "H100", "20.0 GiB with checkpointing; checkpointing alone saves 21.0 GiB."),
        (80, 55, "H100", "Most effect: checkpointing (`wrap_blocks`), 21.0 GiB."),
    ],
)
def test_of_a_lever_that_was_tried_the_line_says_what_it_really_saves(
    before: float, peak: int, card: str | None, said: str
) -> None:
    steps = [of_peak(before, 0, 30), of_peak(59, 4, 30)]
    line = answer_line(steps, Device.of(card) if card else None, LeverPeak(StateLever.LORA, 1, peak * 2**30))
    assert said in line
    assert "up to" not in line


@pytest.mark.parametrize("remedy", Remedy)
def test_what_a_hint_names_exists(remedy: Remedy) -> None:
    line = Hint(remedy, MIB).sentence(explanation())
    assert remedy in line
    for module, name in re.findall(r"`(ckpt_surgery[\w.]*)\.(\w+)`", line):
        assert hasattr(import_module(module), name)


def test_the_drawing_has_an_axis_and_says_what_is_where() -> None:
    step = explanation()
    timeline = replace(step.timeline, modules=("model.layers.0", "model.layers.1", "", "model.layers.0"))
    svg = timeline_svg(replace(step, timeline=timeline), step.peak_bytes)
    assert re.findall(r'class="axis"[^>]*>([^<]*)<', svg) == ["0 MiB", "5 MiB", "10 MiB", "15 MiB", "20 MiB"]
    said = re.findall(r'<rect class="hover"[^>]*><title>([^<]*)</title>', svg)
    assert len(said) == 4
    assert said[1] == "18.0 MiB in all\nin model.layers.1\nkept for the backward: 10.0 MiB"
    assert "in loss" in said[2]
    assert "6.0 MiB</text>" in treemap_svg(step.holders)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as running:
        yield running


def drawing_faults(browser: Browser, page: Path) -> list[str]:
    """Show a page; describe messages, requests, areas without a colour and cells without a name."""
    browser.open(page)
    faults = [*browser.messages(), *browser.requests()]
    script = """const plain = (e) => getComputedStyle(e).fill === "rgb(0, 0, 0)";
        const unnamed = (e) => !e.getAttribute("aria-label") || e.tabIndex !== 0;
        return [[...document.querySelectorAll(".timeline polygon, .timeline rect")].filter(plain).length,
            [...document.querySelectorAll(".treemap g")].filter(unnamed).length]"""
    plain, unnamed = browser.run(script)
    return faults + (["no colour"] if plain else []) + (["no name"] if unnamed else [])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_drawn_in_both_schemes_without_a_message(browser: Browser, tmp_path: Path, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.developer("Emulation.setEmulatedMedia", features=features)
    page = tmp_path / "page.html"
    page.write_text(explanation().to_html(), encoding="utf-8")
    assert drawing_faults(browser, page) == []
    for broken, fault in (('class="kept"', "no colour"), ("tabindex", "no name")):
        page.write_text(explanation().to_html().replace(broken, "data-x"), encoding="utf-8")
        assert drawing_faults(browser, page) == [fault]
