"""A guard under FSDP2: two ranks train the same as without it, and each proves its blocks."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from ckpt_surgery.guarding.proof import ProofStatus
from tests.guarding.sharded_script import BROKEN, CASES, LAYERS, SIZE, SPLIT
from tests.rank_cases import Results, case_results

PARAMETERS = 9
"""The parameters of a layer."""
ADAPTED = 4
"""The parameters of its adapters."""
WRONG = {
    "broken": {"mlp.up_proj.weight", "post_attention_layernorm.weight"},
    "broken with adapters": {"self_attn.v_proj.lora_A.default.weight", "its argument hidden_states"},
}

pytestmark = [pytest.mark.both, pytest.mark.torch]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return case_results("tests.guarding.sharded_script", tmp_path_factory.mktemp("sharded"), SIZE)


@pytest.mark.parametrize("case", CASES)
def test_a_guarded_training_of_shards_is_that_without_and_is_proved(results: Results, case: str) -> None:
    for rank in results[case]:
        assert (rank["losses"], rank["names"], rank["weights"]) == (True, True, True)
        assert rank["counts"] == [[1, 1]]
        assert rank["proofs"] == ["proved"] * LAYERS
        if case.startswith("adapters"):
            first, second = rank["compared"]
            assert first in (ADAPTED, ADAPTED + 1), "transformers 5 has the first layer's input require gradient"
            assert second == ADAPTED + 1
        else:
            assert rank["compared"] == [PARAMETERS + 1] * LAYERS, "with what a layer was given"
        assert rank["faults"] == []


@pytest.mark.parametrize("case", SPLIT)
def test_a_block_whose_parts_are_gathered_later_is_not_proved_and_no_fault(results: Results, case: str) -> None:
    for rank in results[case]:
        assert (rank["losses"], rank["names"], rank["weights"]) == (True, True, True)
        assert rank["proofs"] == [ProofStatus.SPLIT] * LAYERS
        assert rank["faults"] == []


@pytest.mark.parametrize("case", BROKEN)
def test_a_wrong_and_a_missing_gradient_are_reported_by_parameter(results: Results, case: str) -> None:
    for rank in results[case]:
        assert rank["proofs"] == ["proved", "wrong"]
        assert WRONG[case] <= set(rank["wrong"])
        (untrained,) = rank["untrained"]
        assert [name.partition("layers.")[2] for name in untrained] == ["0.unused.weight", "0.unused.bias"]
