"""The page of a plan: a point for each way, the budget as a line, names escaped."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch")

from ckpt_surgery.planning.plan_page import FrontPoint, front_svg, plan_page
from tests.planning.test_shown import explanation

pytestmark = pytest.mark.torch
MIB = 2**20
POINTS = (
    FrontPoint("0 of 4 blocks", 40 * MIB, 0.0, "0.0 %", True, False),
    FrontPoint("2 of 4 blocks", 20 * MIB, 0.1, "10.0 %", True, True),
    FrontPoint("4 of 4 <blocks>", 10 * MIB, 0.2, "20.0 %", False, False),
)


def circles(svg: str) -> list[tuple[str, float, float]]:
    found = re.findall(r'class="(\w+)" cx="([\d.]+)" cy="([\d.]+)"', svg)
    return [(kind, float(x), float(y)) for kind, x, y in found]


def test_each_way_is_where_its_peak_and_its_time_are() -> None:
    svg = front_svg(POINTS, 20 * MIB)
    assert circles(svg) == [("metered", 720.0, 260.0), ("chosen", 360.0, 130.0), ("estimate", 180.0, 0.0)]
    assert re.search(r'<line x1="360.0"', svg)
    assert circles(front_svg(POINTS[:1], 80 * MIB)) == [("metered", 360.0, 260.0)]


def test_the_page_has_the_calls_the_front_and_the_step() -> None:
    code = "fuse_loss(model)\nwrap_blocks(model)"
    page = plan_page("Small<Model>", 20 * MIB, code, POINTS, explanation(), "Fits with `it`.")
    assert "fuse_loss(model)\nwrap_blocks(model)" in page
    assert "A plan for Small&lt;Model&gt; within 20.0 MiB" in page
    assert "4 of 4 &lt;blocks&gt;" in page
    assert "~ 10.0 MiB" in page
    assert "Memory over the step" in page
    assert 'data-copies="calls"' in page
    assert "of the peak" not in page, "a plan has weighed the remedies"
    assert "<p>Fits with <code>it</code>.</p>" in page
