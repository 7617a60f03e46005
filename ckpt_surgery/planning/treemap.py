"""Rectangles whose areas are in proportion to weights, as near to squares as rows of them allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle."""

    left: float
    top: float
    width: float
    height: float


def treemap(weights: Sequence[float], box: Box) -> list[Box]:
    """Divide all of `box` into a part for each weight. Weights are positive, the largest first."""
    boxes: list[Box] = []
    at = 0
    while at < len(weights):
        left = sum(weights[at:])
        short, long = sorted((box.width, box.height))
        end = at + 1
        while end < len(weights) and _worst(weights[at : end + 1], left, short, long) <= _worst(
            weights[at:end], left, short, long
        ):
            end += 1
        row, rest = _row(weights[at:end], left, box)
        boxes += row
        box, at = rest, end
    return boxes


def _worst(row: Sequence[float], left: float, short: float, long: float) -> float:
    """Return the largest ratio of the longer side to the shorter among the boxes of the row."""
    depth = long * sum(row) / left
    sides = [short * weight / sum(row) for weight in row]
    return max(max(depth / side, side / depth) for side in sides)


def _row(row: Sequence[float], left: float, box: Box) -> tuple[list[Box], Box]:
    """Lay out the boxes of a row along the shorter side; return them, and what is left of the box."""
    share, done, boxes = sum(row) / left, 0.0, []
    for weight in row:
        part = weight / sum(row)
        if box.width >= box.height:
            boxes.append(Box(box.left, box.top + done * box.height, box.width * share, box.height * part))
        else:
            boxes.append(Box(box.left + done * box.width, box.top, box.width * part, box.height * share))
        done += part
    if box.width >= box.height:
        return boxes, Box(box.left + box.width * share, box.top, box.width * (1 - share), box.height)
    return boxes, Box(box.left, box.top + box.height * share, box.width, box.height * (1 - share))
