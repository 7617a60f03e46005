"""What a rule is, and where rules come from: every module of `rules/` is one, and nothing else lists them.

Such a module has `RULE`, which declares it, `find`, which finds with it, and a docstring, which is its page.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

from ckpt_surgery.codemods.context import RuleContext
from ckpt_surgery.codemods.declaration import Declaration
from ckpt_surgery.codemods.finding import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Declaration):
    """What a rule's file declares, and the file's name, function and docstring."""

    name: str
    find: Callable[[RuleContext], Iterator[Finding]]
    documentation: str

    @property
    def summary(self) -> str:
        """The first line of the documentation."""
        return self.documentation.strip().splitlines()[0]


def discover(package: str = f"{__package__}.rules") -> tuple[Rule, ...]:
    """Return the rules of a package, sorted by code.

    Raises:
        TypeError: a module without a `RULE`.
        ValueError: two rules have one code.
    """
    names = [module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__)]
    rules = sorted((_rule_of(f"{package}.{name}") for name in names), key=lambda rule: rule.code)
    for rule, following in itertools.pairwise(rules):
        if rule.code == following.code:
            raise ValueError(f"the rules {rule.name} and {following.name} both have the code {rule.code}")
    return tuple(rules)


def _rule_of(name: str) -> Rule:
    module = importlib.import_module(name)
    declared = getattr(module, "RULE", None)
    if not isinstance(declared, Declaration):
        raise TypeError(f"{name} declares no rule: it needs RULE = Declaration(...)")
    said = {field.name: getattr(declared, field.name) for field in fields(declared)}
    return Rule(**said, name=name.rpartition(".")[2], find=module.find, documentation=module.__doc__ or "")
