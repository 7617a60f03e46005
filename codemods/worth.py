"""Choose the files of a tree that are worth parsing: most files are neither a model nor a script.

Plain text searches decide. A file that may contain a declared fact is parsed. If a file mentions checkpointing, so is
every module that imports it, directly or not, since it may hold its layers or inherit from its models, and everything
that these modules import, which may define their blocks. Other files are read only when a name leads to them.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set

from ckpt_surgery.codemods.facts.checkpoint_helpers import speaks_of_checkpointing
from ckpt_surgery.codemods.providers import declared_facts
from ckpt_surgery.codemods.tree.caching import reachable
from ckpt_surgery.codemods.tree.names import by_module

_IMPORTS = re.compile(
    r"\n[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]*)|import[ \t]+([\w., \t]+)"
    r"|# Copied from ([\w.]+))"
)
"""It begins with a literal, which makes the search fast."""
_WORD = re.compile(r"\w+")
_MODULES = ("def forward(", "Module)", "PreTrainedModel)", "ModuleList(", "Sequential(", "Layer(", "Block(", "Stage(")
"""A file that defines, holds or makes modules contains one of these."""
_PACKAGE = "__init__.py"


def worth_parsing(texts: Mapping[str, str]) -> frozenset[str]:
    """Return the paths of the files that a check of a tree has to parse.

    Args:
        texts: the text of each file of the tree, by its path.
    """
    mentioning = {path for path, text in texts.items() if speaks_of_checkpointing(text)}
    facts = [fact for fact in declared_facts()[0] if fact.worth is not speaks_of_checkpointing]
    others = ((path, text) for path, text in texts.items() if path not in mentioning)
    with_facts = {path for path, text in others if any(fact.may_be_in(text) for fact in facts)}
    modules = {path for path, text in texts.items() if any(sign in text for sign in _MODULES)}
    modules.update(mentioning, (path for path in texts if path.endswith(_PACKAGE)))
    by_name = by_module(modules)
    imports = {path: {*_imported(path, texts[path], modules, by_name)} for path in modules}
    importers: dict[str, list[str]] = defaultdict(list)
    for path, files in imports.items():
        for file in files:
            importers[file].append(path)
    users = reachable(mentioning, lambda path: importers[path])
    return frozenset(with_facts.union(reachable(users, imports.__getitem__)))


def _imported(
    path: str, text: str, modules: Set[str], by_name: Mapping[str, Sequence[tuple[str, str]]]
) -> Iterator[str]:
    """Yield the files that a file imports or copies from; an imported name may be a file, too."""
    for origin, names, imported, copied in _IMPORTS.findall(f"\n{text}"):
        prefix = origin if origin.endswith(".") else f"{origin}."
        words = (*(prefix + name for name in _WORD.findall(names)), *re.split(r"[,\s]+", imported))
        copies = (copied.rpartition(".")[0], copied.rsplit(".", 2)[0]) if copied else ()
        for module in (origin, *words, *copies):
            inner, folder = module.lstrip("."), path
            for _ in range(len(module) - len(inner)):
                folder = os.path.dirname(folder)
            if folder != path:
                target = os.path.join(folder, *filter(None, inner.split(".")))
                yield from modules & {f"{target}.py", os.path.join(target, _PACKAGE)}
            for top, file in by_name.get(module.removeprefix("transformers."), ()):
                if path.startswith(top):
                    yield file
