"""Random state: what a seed fixes, and what is restored."""

from __future__ import annotations

import random

import numpy
import pytest
import torch

from ckpt_surgery.measure.generators import random_state_kept, seed_all
from ckpt_surgery.runtime.tools.rng import generator_state

pytestmark = pytest.mark.both


def _draws() -> tuple[float, ...]:
    return float(torch.rand(())), random.random(), float(numpy.random.rand())


def test_the_same_seed_gives_the_same_numbers_from_every_generator() -> None:
    with random_state_kept():
        seed_all(3)
        first = _draws()
        seed_all(3)
        assert _draws() == first
        seed_all(4)
        assert all(now != before for now, before in zip(_draws(), first, strict=True))


def test_every_generator_goes_on_as_if_nothing_had_been_drawn_inside() -> None:
    with random_state_kept():
        seed_all(3)
        first = _draws()
        seed_all(3)
        with random_state_kept():
            seed_all(4)
            _draws()
        assert _draws() == first


def test_the_generators_are_restored_after_an_error_too() -> None:
    with random_state_kept():
        seed_all(3)
        first = _draws()
        seed_all(3)
        with pytest.raises(ZeroDivisionError), random_state_kept():
            raise ZeroDivisionError(_draws())
        assert _draws() == first


def test_equal_states_are_equal_and_one_draw_makes_another() -> None:
    with random_state_kept():
        before = generator_state()
        assert generator_state() == before
        torch.rand(())
        assert generator_state() != before
