"""A target crosses a process boundary unchanged."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from ckpt_surgery.survey.target import SurveyTarget, TargetKind, target_of


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
    assert target_of(json.loads(json.dumps(target.to_dict()))) == target
