"""The rules, and what they stand on. Decisions are made on `ast`, edits with libcst; nothing here imports torch.

Each line imports those above it:

    facts/                          what every file says, and the one reader of statements that finds it out
    wording                         reasons, which carry their words
    repair, finding                 what is to be changed where, as values; what a rule gives
    scripts/                        how values flow in a training script
    providers/                      what else files say: one module a fact, found by being there
    tree/, extract                  what the files of a tree say together; a text to its facts
    edits/, declaration             libcst transformers, one a repair; what a rule declares
    repairs/                        which repairs put something right: of calls, classes, imports
    commands, context               the transformers for libcst's tool; what a rule is given
    rules/                          one file a rule, none of which imports another
    rule                            finds the rules by being in rules/
"""

from __future__ import annotations

from ckpt_surgery.codemods.rule import Rule, discover

RULES: tuple[Rule, ...] = discover()
"""Every rule, in the order of the codes."""
_BY_CODE = {rule.code: rule for rule in RULES}


def rule_of(code: str) -> Rule:
    """Return the rule of a code such as `CKPT003`.

    Raises:
        KeyError: there is no such rule.
    """
    return _BY_CODE[code]
