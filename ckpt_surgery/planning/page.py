"""Steps as one HTML page that needs no network: sums, memory over the step, treemaps by module, and holders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from ckpt_surgery.planning.allocations import AllocationKind
from ckpt_surgery.planning.answer import LeverPeak, answer_line
from ckpt_surgery.planning.devices import Device
from ckpt_surgery.planning.figures import Holder, StepFigures
from ckpt_surgery.planning.text import caveats, facts_of, holder_rows, notes
from ckpt_surgery.report.html import page_of
from ckpt_surgery.report.html_detail import coded
from ckpt_surgery.text import plural, size, size_unit

_WIDTH, _HEIGHT, _TREE_HEIGHT = 720.0, 240.0, 260.0
_AXIS = 62  # the width of its labels
_SMALLEST = 0.004  # a module with less than this share of a treemap is drawn among "others"
_MOST_HOLDERS = 40
_LEAST_SHARE = 0.005
"""The least share of the kept bytes that gets a row in the table."""
_CSS_CLASSES = {kind: kind.name.lower() for kind in AllocationKind}


def explanation_page(
    steps: Sequence[tuple[str, StepFigures]], card: Device | None = None, tried: LeverPeak | None = None
) -> str:
    """Return the page: the answer of `answer_line`, and each step with its title, drawn to one scale."""
    names = list(dict.fromkeys(step.model for _, step in steps))
    title = f"The memory of a step: {', '.join(names)}"
    highest = max((step.peak_bytes for _, step in steps), default=0)
    answer = f"<p>{coded(answer_line([step for _, step in steps], card, tried))}</p>" if steps else ""
    body = [f"<header><h1>{escape(title)}</h1>{answer}</header>", '<main class="steps">']
    body += [step_section(name, step, highest) for name, step in steps]
    return page_of(title, [*body, "</main>", _FOOTER])


_FOOTER = (
    "<footer><p>Bytes of tensors. The inputs and the workspace of cuBLAS are counted where a CUDA device was named; "
    "what an allocator cannot reuse, other workspace inside kernels and the context of a device are not. Holders are "
    "of the moment when the backward begins, unless the peak is named.</p></footer>"
)


def step_section(name: str, step: StepFigures, highest: int, *, hints: bool = True) -> str:
    """Return the section of one step, drawn so that `highest` bytes are the full height. Plans pass `hints=False`."""
    facts = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in facts_of(step))
    kinds = [(_CSS_CLASSES[kind], str(kind)) for kind, _, _ in step.timeline.stacked(step.always_bytes)]
    legend = [
        f'<li><i class="{slug}"></i> {escape(held)}</li>'
        for slug, held in [("always", "parameters, buffers, optimizer, inputs, workspace"), *kinds]
    ]
    legend.append("<li>line: the backward begins; dot: the peak</li>")
    timeline = f'{timeline_svg(step, highest)}<ul class="kinds">{"".join(legend)}</ul>'
    least = _LEAST_SHARE * step.kept_bytes
    shown = [holder for holder in step.holders[:_MOST_HOLDERS] if holder.bytes >= least]
    rows = "".join(
        f"<tr><td>{held}</td><td>{share}</td><td>{count}</td>"
        f'<td class="words">{escape(module)}<br><span class="key">made by {escape(made)}'
        f"{f', kept by {escape(kept)}' if kept else ''}</span></td>"
        f'<td class="words">{escape(tensor)}</td></tr>'
        for held, share, count, module, made, kept, tensor in holder_rows(shown, step)
    )
    head = "".join(f"<th>{heading}</th>" for heading in ("bytes", "share", "count", "module", "tensor"))
    left_out = f"; {plural(rest, 'smaller one')} left out" if (rest := len(step.holders) - len(shown)) else ""
    said = f"<caption>Kept for the backward, the largest first{left_out}</caption>"
    table = f'<table class="holders">{said}<tr>{head}</tr>{rows}</table>'
    parts = [
        f"<h2>{escape(name or step.model)}</h2>",
        f'<dl class="facts">{facts}</dl>',
        *(f'<p class="problem">{coded(note)}</p>' for note in (notes(step) if hints else caveats(step))),
        *(
            f'<figure class="memory"><figcaption>{caption}</figcaption>{inside}</figure>'
            for caption, inside in (
                ("Memory over the step", timeline),
                ("Kept for the backward, by module", treemap_svg(step.holders)),
                ("Alive at the peak, by module", treemap_svg(step.peak.holders)),
            )
        ),
        f'<div class="scroll" tabindex="0">{table}</div>',
    ]
    return f'<section class="detail step">{"".join(parts)}</section>'


def timeline_svg(step: StepFigures, highest: int) -> str:
    """Draw stacked areas over the operators; `highest` bytes are the full height."""
    points = step.timeline.points
    if not points or not highest:
        return "<p>The step allocates nothing.</p>"
    scale_x, scale_y = _WIDTH / max(points[-1], 1), _HEIGHT / highest
    areas = step.timeline.stacked(step.always_bytes)
    total = areas[-1][2] if areas else [step.always_bytes] * len(points)
    top = total.index(max(total))

    def line(edge: Sequence[int]) -> list[str]:
        return [f"{x * scale_x:.1f},{_HEIGHT - y * scale_y:.1f}" for x, y in zip(points, edge, strict=True)]

    base = step.always_bytes * scale_y
    drawn = [
        *_y_axis(highest),
        f'<rect class="always" x="0" y="{_HEIGHT - base:.1f}" width="{_WIDTH:.0f}" height="{base:.1f}">'
        f"<title>parameters, buffers, optimizer, inputs, workspace: {size(step.always_bytes)}</title></rect>",
    ]
    for kind, low, high in areas:
        drawn.append(
            f'<polygon class="{_CSS_CLASSES[kind]}" points="{" ".join([*line(high), *reversed(line(low))])}">'
            f"<title>{escape(kind)}: at most {size(max(step.timeline.bytes[kind]))}</title></polygon>"
        )
    end, peak = step.timeline.backward_at * scale_x, points[top] * scale_x
    marks = (
        f'<line x1="{end:.1f}" x2="{end:.1f}" y1="0" y2="{_HEIGHT:.0f}"><title>the backward begins</title></line>'
        f'<circle cx="{peak:.1f}" cy="{_HEIGHT - total[top] * scale_y:.1f}" r="4">'
        f"<title>peak: {size(step.peak_bytes)}</title></circle>"
    )
    edges = [0.0, *((left + right) * scale_x / 2 for left, right in pairwise(points)), _WIDTH]
    for index, (left, right) in enumerate(pairwise(edges)):
        where = step.timeline.modules[index] or "loss" if step.timeline.modules else ""
        kinds = [f"{kind}: {size(high[index] - low[index])}" for kind, low, high in areas if high[index] > low[index]]
        said = "\n".join(filter(None, [f"{size(total[index])} in all", where and f"in {where}", *kinds]))
        marks += (
            f'<rect class="hover" x="{left:.1f}" y="0" width="{right - left:.1f}" height="{_HEIGHT:.0f}">'
            f"<title>{escape(said)}</title></rect>"
        )
    label = f"Memory over the operators of a step, at most {size(step.peak_bytes)}"
    return (
        f'<svg class="timeline" viewBox="{-_AXIS} -8 {_WIDTH + _AXIS + 5:.0f} {_HEIGHT + 16:.0f}" role="img" '
        f'aria-label="{escape(label)}">{"".join(drawn)}{marks}</svg>'
    )


def _y_axis(highest: int) -> Iterator[str]:
    """Yield at most six labelled lines across a drawing whose full height is `highest` bytes."""
    unit, divisor = size_unit(highest)
    most = highest / divisor
    step = next(each * 10**power for power in range(-1, 4) for each in (1, 2, 5) if most <= 5 * each * 10**power)
    for tick in range(int(most / step) + 1):
        y = _HEIGHT * (1 - tick * step / most)
        yield f'<line class="grid" x1="0" x2="{_WIDTH:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="axis" x="-6" y="{y + 4:.1f}">{tick * step:g} {unit}</text>'


def treemap_svg(holders: Sequence[Holder]) -> str:
    """Draw a rectangle for each module, sized by the bytes that it made."""
    held_by: Counter[str] = Counter()
    for holder in holders:
        held_by[holder.module or "(loss)"] += holder.bytes
    least = _SMALLEST * held_by.total()
    small = sum(held for held in held_by.values() if held < least)
    rows = [(name, held) for name, held in held_by.items() if held and held >= least]
    rows = sorted([*rows, *([("others", small)] if small else [])], key=lambda row: -row[1])
    if not rows:
        return "<p>Nothing.</p>"
    cells = []
    boxes = Box(0, 0, _WIDTH, _TREE_HEIGHT).divided([held for _, held in rows])
    for (module, held), box in zip(rows, boxes, strict=True):
        said = escape(f"{module}: {size(held)}")
        shown = min(len(module), int(box.width / 7.2) - 1)
        text = module if shown == len(module) else f"\u2026{module[len(module) - shown + 1 :]}"
        words = f'<text x="{box.left + 5:.1f}" y="{box.top + 15:.1f}">{escape(text)}</text>'
        if box.height > 34 and box.width > 7.2 * (len(size(held)) + 1):
            words += f'<text x="{box.left + 5:.1f}" y="{box.top + 30:.1f}">{size(held)}</text>'
        shade = 0.1 + 0.5 * held / rows[0][1]
        cells.append(
            f'<g tabindex="0" role="img" aria-label="{said}"><title>{said}</title>'
            f'<rect x="{box.left:.1f}" y="{box.top:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" '
            f'fill-opacity="{shade:.2f}"/>'
            f"{words if shown > 5 and box.height > 18 else ''}</g>"
        )
    size_of_box = f"{_WIDTH:.0f} {_TREE_HEIGHT:.0f}"
    return f'<svg class="treemap" viewBox="0 0 {size_of_box}" role="group">{"".join(cells)}</svg>'


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle."""

    left: float
    top: float
    width: float
    height: float

    def divided(self, weights: Sequence[float]) -> list[Box]:
        """Divide it as a squarified treemap: a part for each weight. Weights are positive, the largest first."""

        def worst(row: Sequence[float]) -> float:
            """Return the largest ratio of the longer side to the shorter among the boxes of the row."""
            depth = long * sum(row) / left
            sides = [short * weight / sum(row) for weight in row]
            return max(max(depth / side, side / depth) for side in sides)

        box, boxes, begin = self, list[Box](), 0
        while begin < len(weights):
            left = sum(weights[begin:])
            short, long = sorted((box.width, box.height))
            end = begin + 1
            while end < len(weights) and worst(weights[begin : end + 1]) <= worst(weights[begin:end]):
                end += 1
            row = sum(weights[begin:end])
            share, done, is_wide = row / left, 0.0, box.width >= box.height
            for weight in weights[begin:end]:
                part = weight / row
                if is_wide:
                    boxes.append(Box(box.left, box.top + done * box.height, box.width * share, box.height * part))
                else:
                    boxes.append(Box(box.left + done * box.width, box.top, box.width * part, box.height * share))
                done += part
            if is_wide:
                box = Box(box.left + box.width * share, box.top, box.width * (1 - share), box.height)
            else:
                box = Box(box.left, box.top + box.height * share, box.width, box.height * (1 - share))
            begin = end
        return boxes
