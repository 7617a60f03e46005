"""A plan as one HTML page that needs no network: the calls, the front as a drawing and a table, the chosen step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ckpt_surgery.planning.figures import StepFigures
from ckpt_surgery.planning.page import step_section
from ckpt_surgery.report.html import page_of
from ckpt_surgery.report.html_detail import coded
from ckpt_surgery.text import percent, size

_WIDTH, _HEIGHT = 720.0, 260.0
_FOOTER = (
    "<footer><p>Peaks are of tensors; leave a margin for the workspace of kernels, what the allocator adds and the "
    "context of the device. Hollow points are estimates between steps that were metered.</p></footer>"
)

_COPY = """for (const button of document.querySelectorAll("[data-copies]"))
  button.addEventListener("click", async () => {
    const text = document.getElementById(button.dataset.copies).innerText;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = Object.assign(document.body.appendChild(document.createElement("textarea")), {value: text});
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "Copied";
  });
"""


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """A way on the front: its name, peak in bytes, and extra time, as a share of a step and in words."""

    name: str
    peak: int
    extra: float
    said: str
    measured: bool
    chosen: bool


def plan_page(model: str, memory: int, code: str, points: Sequence[FrontPoint], step: StepFigures, answer: str) -> str:
    """Return the page. `code` is the Python code that applies the plan, empty if nothing has to be done."""
    title = f"A plan for {model} within {size(memory)}"
    calls = (
        f'<div class="calls"><button type="button" data-copies="calls">Copy</button>'
        f'<pre id="calls"><code>{escape(code)}</code></pre></div>'
    )
    rows = [
        f"<tr{' class=chosen' if point.chosen else ''}><td class=words>{escape(point.name)}</td>"
        f"<td>{'' if point.measured else '~ '}{size(point.peak)}</td><td>{point.said}</td></tr>"
        for point in points
    ]
    ways = (
        '<h2>The ways</h2><figure class="memory"><figcaption>Peak and extra time</figcaption>'
        f'{front_svg(points, memory)}</figure><div class="scroll" tabindex="0"><table class="holders">'
        "<caption>Each takes more time than the last and needs less</caption>"
        f"<tr><th>way</th><th>peak</th><th>extra time</th></tr>{''.join(rows)}</table></div>"
    )
    body = [
        f"<header><h1>{escape(title)}</h1><p>{coded(answer)}</p>{calls if code else ''}</header>",
        f'<main class="steps"><section class="detail step">{ways}</section>',
        step_section("The step with it", step, step.peak_bytes, hints=False),
        "</main>",
    ]
    return page_of(title, [*body, _FOOTER], _COPY)


def front_svg(points: Sequence[FrontPoint], memory: int) -> str:
    """Draw a point for each way: peak from left to right, extra time from bottom to top, and the budget as a line."""
    most = max([memory, *(point.peak for point in points)])
    longest = max((point.extra for point in points), default=0.0) or 1.0

    def place(point: FrontPoint) -> tuple[float, float]:
        return _WIDTH * point.peak / most, _HEIGHT * (1 - point.extra / longest)

    budget = _WIDTH * memory / most
    marks = [
        f'<text class="axis start" x="0" y="{_HEIGHT + 18:.0f}">0</text>',
        f'<text class="axis" x="{_WIDTH:.0f}" y="{_HEIGHT + 18:.0f}">{size(most)} at the peak</text>',
        f'<text class="axis start" x="6" y="6">{percent(longest)} more time</text>',
        f'<line x1="{budget:.1f}" x2="{budget:.1f}" y1="0" y2="{_HEIGHT:.0f}"><title>{size(memory)}</title></line>',
    ]
    for point in points:
        x, y = place(point)
        kind = "chosen" if point.chosen else "metered" if point.measured else "estimate"
        said = escape(f"{point.name}: {size(point.peak)}, {point.said} more time")
        marks.append(
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{6 if point.chosen else 4}" tabindex="0" role="img" '
            f'aria-label="{said}"><title>{said}</title></circle>'
        )
    label = f"Peak, at most {size(most)}, and extra time, at most {percent(longest)}, of {len(points)} ways"
    return (
        f'<svg class="front" viewBox="-8 -8 {_WIDTH + 16:.0f} {_HEIGHT + 32:.0f}" role="group" '
        f'aria-label="{escape(label)}">{"".join(marks)}</svg>'
        f'<ul class="kinds"><li>line: the budget of {size(memory)}; '
        f"large: the choice; hollow: an estimate</li></ul>"
    )
