"""A guard under FSDP2: two ranks train the same as without it, and each proves its blocks."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.guarding.sharded_script import CASES, LAYERS, SIZE
from tests.rank_cases import Results, case_results

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
        assert rank["faults"] == []
