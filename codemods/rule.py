"""What a rule is, and where rules come from: every module of `rules/` that declares one.

    RULE = Declaration(code="CKPT003", repair=RepairKind.SAFE, ...)

    def find(context: RuleContext) -> Iterator[Finding]: ...

Nothing else lists them. The module's docstring documents the rule under four headings: what it does, why it is
bad, an example, fix safety.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from types import ModuleType

from ckpt_surgery.codemods.context import RuleContext
from ckpt_surgery.codemods.declaration import Declaration
from ckpt_surgery.codemods.finding import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Declaration):
    """A rule: what its file declares, and the file's name, function and docstring."""

    name: str
    find: Callable[[RuleContext], Iterator[Finding]]
    documentation: str

    @property
    def summary(self) -> str:
        """The first line of the documentation."""
        return self.documentation.strip().splitlines()[0]


def discover(package: str = f"{__package__}.rules") -> tuple[Rule, ...]:
    """The rules of a package, sorted by code.

    Raises:
        TypeError: a module without a `RULE`.
        ValueError: two rules have one code.
    """
    names = [module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__)]
    rules = sorted((_rule_of(importlib.import_module(f"{package}.{name}")) for name in names), key=lambda r: r.code)
    for rule, following in itertools.pairwise(rules):
        if rule.code == following.code:
            raise ValueError(f"the rules {rule.name} and {following.name} both have the code {rule.code}")
    return tuple(rules)


def _rule_of(module: ModuleType) -> Rule:
    declared = getattr(module, "RULE", None)
    if not isinstance(declared, Declaration):
        raise TypeError(f"{module.__name__} declares no rule: it needs RULE = Declaration(...)")
    values = {field.name: getattr(declared, field.name) for field in fields(declared)}
    name = module.__name__.rpartition(".")[2]
    return Rule(**values, name=name, find=module.find, documentation=module.__doc__ or "")
