"""Which files of a tree are worth parsing: most of what other people's repositories hold is neither model nor script.

By plain searches of the texts. A file is parsed where a fact of its own may be in it, as for code that checkpoints.
Where files speak of checkpointing, so is every module that imports join to one of them: it may define their blocks,
hold them, or inherit from their models. All else is read where a name leads to it.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from ckpt_surgery.codemods.facts.checkpoint_helpers import speaks_of_checkpointing
from ckpt_surgery.codemods.providers import declared_facts
from ckpt_surgery.codemods.tree.answers import reachable

_IMPORTS = re.compile(
    r"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]*)|import[ \t]+([\w., \t]+)"
    r"|# Copied from ([\w.]+))",
    re.M,
)
_WORD = re.compile(r"\w+")
_MODULES = ("def forward(", "Module)", "ModuleList(", "Sequential(", "Layer(", "Block(", "Stage(")
"""What a file has that defines, holds or makes modules."""
_PACKAGE = "__init__.py"


def worth_parsing(texts: Mapping[str, str]) -> frozenset[str]:
    """Return the paths of the files that a check of a tree has to parse.

    Args:
        texts: the text of each file of the tree, by its path.
    """
    facts, _ = declared_facts()
    speaking = {path for path, text in texts.items() if speaks_of_checkpointing(text)}
    others = ((path, text) for path, text in texts.items() if path not in speaking)
    concerned = {path for path, text in others if any(fact.may_be_in(text) for fact in facts)}
    modules = {path for path, text in texts.items() if any(sign in text for sign in _MODULES)}
    modules.update(speaking, (path for path in texts if path.endswith(_PACKAGE)))
    joined = _joined({path: texts[path] for path in modules})
    return frozenset(concerned.union(reachable(speaking, lambda path: joined.get(path, ()))))


def _joined(texts: Mapping[str, str]) -> Mapping[str, set[str]]:
    """The files that import one another, whatever the folders: that a name is the same is enough to look."""
    called: dict[str, list[str]] = defaultdict(list)
    for path in texts:
        called[os.path.basename(path.removesuffix(f"{os.sep}{_PACKAGE}")).removesuffix(".py")].append(path)
    joined: dict[str, set[str]] = defaultdict(set)
    for path, text in texts.items():
        for other in (file for name in set(_imported(text)) for file in called.get(name, ())):
            joined[path].add(other)
            joined[other].add(path)
    return joined


def _imported(text: str) -> Iterator[str]:
    """The last words of the modules that a file imports or copies from, and the names that it imports from them."""
    for origin, names, modules, copied in _IMPORTS.findall(text):
        yield origin.rpartition(".")[2]
        yield from _WORD.findall(f"{names} {copied}")
        yield from (module.strip().rpartition(".")[2] for module in modules.split(","))
