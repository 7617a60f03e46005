"""Cached answers: each object asks once, and circular questions end."""

from __future__ import annotations

from ckpt_surgery.codemods.tree.answers import kept, kept_in_circles, reachable

LEADS_TO = {"a": "bc", "b": "a", "c": "d", "d": ""}


class Graph:
    """A graph that counts its queries."""

    def __init__(self) -> None:
        self.asked = 0

    @kept
    def length(self, node: str) -> int:
        self.asked += 1
        return len(LEADS_TO[node])

    @kept_in_circles(())
    def below(self, node: str) -> tuple[str, ...]:
        return tuple(found for next_node in LEADS_TO[node] for found in (next_node, *self.below(next_node)))


def test_an_object_is_asked_once_and_another_anew() -> None:
    first, second = Graph(), Graph()
    assert [first.length("a"), first.length("a"), second.length("a")] == [2, 2, 2]
    assert (first.asked, second.asked) == (1, 1)


def test_a_question_that_leads_back_to_itself_ends_and_is_answered_in_full() -> None:
    graph = Graph()
    assert graph.below("a") == graph.below("a") == ("b", "a", "c", "d")


def test_everything_reachable_is_found_once() -> None:
    assert set(reachable("b", LEADS_TO.__getitem__)) == set("abcd")
    assert reachable("dd", LEADS_TO.__getitem__) == ("d",)
