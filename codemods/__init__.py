"""The rules, and all that they build on. Rules decide from `ast`, libcst makes the edits, nothing here imports torch.

Each line may import those above it:

    facts/                          what each source file says, and the interpreter of statements that finds it out
    wording                         reasons not to repair, with their wording
    repair                          what to change and where, as values
    scripts/                        the data flow of training scripts
    providers/                      more facts about files: one module each, discovered by its presence
    tree/, extract                  what the files of a tree say together; the facts of one text
    worth                           which files of a tree are worth parsing
    edits/                          libcst transformers, one for each repair
    repairs/                        which repairs put something right, in calls, classes and imports
    commands, finding               the transformers for libcst's tool; what a rule declares, gets and yields
    rules/                          one file for each rule; no rule imports another

Every module of `rules/` is a rule, and nothing else lists them. It has `RULE`, its declaration, `find`,
which yields its findings, and a docstring, which becomes its page.
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
    """A rule's declaration, with the name, the `find` function and the docstring of its file."""

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
        TypeError: a module has no `RULE`.
        ValueError: two rules share a code.
    """
    rules: list[Rule] = []
    for _, name, _ in pkgutil.iter_modules(importlib.import_module(package).__path__):
        module = importlib.import_module(f"{package}.{name}")
        declared = getattr(module, "RULE", None)
        if not isinstance(declared, Declaration):
            raise TypeError(f"{package}.{name} declares no rule: it needs RULE = Declaration(...)")
        values = {field.name: getattr(declared, field.name) for field in fields(declared)}
        rules.append(Rule(**values, name=name, find=module.find, documentation=module.__doc__ or ""))
    rules.sort(key=lambda rule: rule.code)
    for rule, following in itertools.pairwise(rules):
        if rule.code == following.code:
            raise ValueError(f"the rules {rule.name} and {following.name} both have the code {rule.code}")
    return tuple(rules)


RULES: tuple[Rule, ...] = discover()
"""Every rule, sorted by code."""
_BY_CODE = {rule.code: rule for rule in RULES}


def rule_of(code: str) -> Rule:
    """Return the rule of a code such as `CKPT003`.

    Raises:
        KeyError: there is no such rule.
    """
    return _BY_CODE[code]
