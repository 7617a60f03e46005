"""Targets cross process boundaries unchanged; shards, time limits and devices are checked."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt_surgery.survey.build import device_problem, moved
from ckpt_surgery.survey.target import (
    SurveyTarget,
    TargetError,
    TargetKind,
    checked_timeout,
    parse_shard,
    part_of,
)


@given(
    st.builds(
        SurveyTarget,
        *[st.text()] * 2,
        st.sampled_from(TargetKind),
        *[st.text()] * 3,
        st.lists(st.tuples(st.text(), st.booleans())).map(tuple),
    )
)
def test_it_survives_json(target: SurveyTarget) -> None:
    assert SurveyTarget.of(json.loads(json.dumps(target.to_dict()))) == target


class TestShards:
    @given(st.integers(0, 300), st.integers(1, 40))
    def test_are_disjoint_complete_and_equally_long(self, count: int, shards: int) -> None:
        targets = [SurveyTarget(str(number), str(number)) for number in range(count)]
        parts = [part_of(targets, (index, shards)) for index in range(1, shards + 1)]
        assert [target for part in parts for target in part] == targets
        assert max(map(len, parts)) - min(map(len, parts)) <= 1

    @pytest.mark.parametrize("text", ["", "2", "0/4", "5/4", "a/b", "-1/4", "1/0", "1/2/3", "1.5/2", "²/3"])
    def test_that_make_no_sense_are_refused(self, text: str) -> None:
        with pytest.raises(TargetError, match="is not a shard: write i/n with i from 1 to n, such as 2/4"):
            parse_shard(text)


class TestTimeLimits:
    @pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e300"])
    def test_that_no_clock_can_wait_for_are_refused(self, text: str) -> None:
        with pytest.raises(TargetError, match="is not a time limit: give seconds"):
            checked_timeout(float(text))


@pytest.mark.torch
def test_a_device_on_which_no_model_can_run_is_reported_in_one_sentence() -> None:
    pytest.importorskip("torch")
    assert device_problem("cpu") == ""
    for name in ("meta", "nowhere", "cuda:99"):
        problem = device_problem(name)
        assert problem.startswith(f"no model can run on {name} here (")
        assert problem.endswith("): name another device, or none")


@pytest.mark.torch
def test_a_model_and_its_inputs_are_moved() -> None:
    torch = pytest.importorskip("torch")
    values = torch.ones(2, requires_grad=True)
    model, inputs = moved(torch.nn.Linear(2, 2), {"nested": [values], "flag": True}, "meta")
    assert model.weight.is_meta
    assert inputs["nested"][0].is_meta
    assert inputs["nested"][0].requires_grad
    assert inputs["flag"] is True
