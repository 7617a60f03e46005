"""The rules, and what they stand on. Decisions are made on `ast`, edits with libcst; nothing here imports torch.

Each line imports those above it:

    facts/                          what every file says, and the one reader of statements that finds it out
    wording                         reasons, which carry their words
    repair                          what is to be changed where, as values
    scripts/                        how values flow in a training script
    providers/                      what else files say: one module a fact, found by being there
    tree/, extract                  what the files of a tree say together; a text to its facts
    worth                           which files of a tree are worth parsing
    edits/                          libcst transformers, one a repair
    repairs/                        which repairs put something right: of calls, classes, imports
    commands, finding               the transformers for libcst's tool; what a rule declares, is given and gives
    rules/                          one file a rule, none of which imports another

Every module of `rules/` is a rule, and nothing else lists them. It has `RULE`, which declares it, `find`, which finds
with it, and a docstring, which is its page.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

from ckpt_surgery.codemods.finding import Declaration, Finding, RuleContext

if __name__ == "codemods":
    raise ImportError("import it as ckpt_surgery.codemods: under this name each of its classes would exist twice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Declaration):
    """A rule's declaration, with the name, function and docstring of its file."""

    name: str
    find: Callable[[RuleContext], Iterator[Finding]]
    documentation: str

    @property
    def summary(self) -> str:
        """The first line of the documentation."""
        return self.documentation.strip().splitlines()[0]


def discover(package: str = f"{__name__}.rules") -> tuple[Rule, ...]:
    """Return the rules of a package, sorted by code.

    Raises:
        TypeError: a module without a `RULE`.
        ValueError: two rules have one code.
    """
    rules: list[Rule] = []
    for _, name, _ in pkgutil.iter_modules(importlib.import_module(package).__path__):
        module = importlib.import_module(f"{package}.{name}")
        declared = getattr(module, "RULE", None)
        if not isinstance(declared, Declaration):
            raise TypeError(f"{package}.{name} declares no rule: it needs RULE = Declaration(...)")
        said = {field.name: getattr(declared, field.name) for field in fields(declared)}
        rules.append(Rule(**said, name=name, find=module.find, documentation=module.__doc__ or ""))
    rules.sort(key=lambda rule: rule.code)
    for rule, following in itertools.pairwise(rules):
        if rule.code == following.code:
            raise ValueError(f"the rules {rule.name} and {following.name} both have the code {rule.code}")
    return tuple(rules)


RULES: tuple[Rule, ...] = discover()
"""Every rule, in the order of the codes."""
_BY_CODE = {rule.code: rule for rule in RULES}


def rule_of(code: str) -> Rule:
    """Return the rule of a code such as `CKPT003`.

    Raises:
        KeyError: there is no such rule.
    """
    return _BY_CODE[code]
