"""Facts from the names and annotations of parameters."""

from __future__ import annotations

import pytest

from ckpt_surgery.codemods.facts.argument_names import is_container, is_switch, may_be_state


@pytest.mark.parametrize(
    ("name", "annotation", "expected"),
    [
        ("output_attentions", "", True),
        ("use_cache", "", True),
        ("attention_mask", "", True),
        ("position_ids", "", True),
        ("scale", "float", True),
        ("flag", "bool | None", True),
        ("flag", "Optional[bool]", True),
        ("flag", "Optional[torch.LongTensor]", True),
        ("hidden_states", "torch.Tensor", False),
        ("states", "Optional[torch.FloatTensor]", False),
        ("interest", "Interval", False),
        ("input_dimensions", "", True),
        ("topk_indices", "", True),
        ("sizes", "tuple[int, int] | None", True),
        ("sizes", "Optional[Tuple[int, ...]]", True),
        ("pair", "tuple[torch.Tensor, int]", False),
    ],
)
def test_options_masks_and_indices_are_switches(name: str, annotation: str, expected: bool) -> None:
    assert is_switch(name, annotation) is expected


def test_a_name_that_is_recurrent_state_somewhere_proves_nothing() -> None:
    assert [name for name in ("state", "ssm_state", "conv_cache", "v_first") if may_be_state(name)] == [
        "state",
        "ssm_state",
        "conv_cache",
    ]


def test_containers_are_known_by_their_annotation() -> None:
    annotations = ("list[torch.Tensor]", "Optional[Tuple[torch.Tensor]]", "torch.Tensor | None", "Listener", "")
    assert list(map(is_container, annotations)) == [True, True, False, False, False]
