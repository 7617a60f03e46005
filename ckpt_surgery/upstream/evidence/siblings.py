"""siblings.md: the findings of the same rules in all families."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt_surgery.text import code, markdown_table, plural, prose
from ckpt_surgery.upstream.evidence.folding import code_list, folded_if_long
from ckpt_surgery.upstream.evidence.results import Evidence, Sibling
from ckpt_surgery.upstream.evidence.tables import rules_list


def siblings_markdown(evidence: Evidence) -> str:
    """The page, with the families of this series first."""
    siblings = sorted(evidence.siblings, key=lambda sibling: not sibling.included)
    included = sum(sibling.included for sibling in siblings)
    parts = [
        f"# The same pattern elsewhere: {code(evidence.group)}",
        f"Static findings of the rules of this series in the base, {code(evidence.base_name)} at "
        f"{code(evidence.base)}: {plural(included, 'family', 'families')} in this series, "
        f"{len(siblings) - included} outside it.",
        rules_list(evidence),
        _table(siblings),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _table(siblings: Sequence[Sibling]) -> str:
    lines = [
        [
            code(sibling.family),
            "yes" if sibling.included else "no",
            " ".join(sibling.rules),
            code_list(sibling.places),
            prose(sibling.reason),
        ]
        for sibling in siblings
    ]
    table = markdown_table(["family", "in this series", "rules", "places", "reason"], lines)
    return folded_if_long(table, len(lines), "family", "families") if lines else ""
