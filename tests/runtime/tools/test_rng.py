"""Random state: what a seed fixes and what is restored."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest
import torch

from ckpt_surgery.measure.generators import random_state_kept, seed_all
from ckpt_surgery.runtime.tools.rng import drawn_since, generator_state, generator_states, set_generator_states

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


def test_a_normal_number_that_waits_is_drawn_and_comes_back() -> None:
    with random_state_kept():
        numpy.random.seed(0)
        numpy.random.randn()  # makes two
        before = generator_states(exact=False)
        assert not drawn_since(before)
        second = numpy.random.randn()
        assert drawn_since(before)
        assert not drawn_since(generator_states(exact=False))
        set_generator_states(before)
        assert not drawn_since(generator_states(exact=False))
        assert numpy.random.randn() == second


def test_draws_of_any_bit_generator_of_numpy_are_seen() -> None:
    module: Any = numpy.random
    usual = module.get_bit_generator()
    module.set_bit_generator(numpy.random.PCG64(0))
    try:
        before = generator_states()
        assert not drawn_since(before)
        first = numpy.random.rand()
        assert drawn_since(before)
        set_generator_states(before)
        assert numpy.random.rand() == first
    finally:
        module.set_bit_generator(usual)
