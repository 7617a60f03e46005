"""Random state: what a seed fixes and what is restored."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import numpy
import pytest
import torch

from ckpt_surgery.measure.generators import random_state_kept, seed_all
from ckpt_surgery.runtime.tools.rng import GeneratorStates

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


@pytest.mark.parametrize("error", [False, True])
def test_every_generator_goes_on_as_if_nothing_had_been_drawn_inside(error: bool) -> None:
    with random_state_kept():
        seed_all(3)
        first = _draws()
        seed_all(3)
        with suppress(ZeroDivisionError), random_state_kept():
            seed_all(4)
            _draws()
            _ = 1 // (not error)
        assert _draws() == first


def test_a_normal_number_that_waits_is_drawn_and_comes_back() -> None:
    with random_state_kept():
        numpy.random.seed(0)
        numpy.random.randn()  # makes two
        before = GeneratorStates.now(exact=False)
        assert not before.drawn_since()
        second = numpy.random.randn()
        assert before.drawn_since()
        assert not GeneratorStates.now(exact=False).drawn_since()
        before.restore()
        assert not GeneratorStates.now(exact=False).drawn_since()
        assert numpy.random.randn() == second


def test_draws_of_any_bit_generator_of_numpy_are_seen() -> None:
    module: Any = numpy.random
    usual = module.get_bit_generator()
    module.set_bit_generator(numpy.random.PCG64(0))
    try:
        before = GeneratorStates.now()
        assert not before.drawn_since()
        first = numpy.random.rand()
        assert before.drawn_since()
        before.restore()
        assert numpy.random.rand() == first
    finally:
        module.set_bit_generator(usual)
