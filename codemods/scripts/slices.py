"""Choose the functions of a script that lead from a wrapper to a backward pass: only these are followed."""

from __future__ import annotations

import ast
import re

from ckpt_surgery.codemods.facts.file_syntax import methods_of
from ckpt_surgery.codemods.facts.interpreter import Function
from ckpt_surgery.codemods.scripts.names import Names, is_accelerator, tail

UNWRAP = {"unwrap_model", "extract_model_from_parallel"}
SYNCHRONISES = re.compile(r"(sync|average|avg|reduce)\w*grad|grad\w*(sync|average|reduce)", re.I)


def functions_to_follow(names: Names) -> list[tuple[Function, ast.ClassDef | None]] | None:
    """Return the functions, and methods with their classes, that deal with wrappers or lead to a backward pass.

    They are taken from the functions and classes that deal with wrappers, or call one that does. None if these run no
    backward pass.
    """
    classes = names.classes
    concerned = {name for name, cls in classes.items() if names.is_trainer(cls)}
    dealing, to_backward = {"__init__"}, {"compute_loss"} if concerned else set[str]()
    by_unit, by_name = dict[str, set[str]](), dict[str, set[str]]()
    for place in names.places:
        unit, _, method = place.prefix.partition(".")
        name = method.partition(".")[0] if unit in classes else unit
        deals = False
        match place.node:
            case ast.Attribute(attr=attribute):
                deals = attribute == "module"
            case ast.Call(func=func):
                callee = tail(func)
                for calls, caller in ((by_unit, unit), (by_name, name)):
                    calls.setdefault(caller, set()).add(callee)
                deals = callee in UNWRAP or prepares(func) or names.is_wrapper(func)
                if callee == "backward":
                    to_backward.add(name)
                elif callee.startswith("all_reduce") or ("grad" in callee.lower() and SYNCHRONISES.search(callee)):
                    dealing.add(name)
        if deals:
            concerned.add(unit)
            dealing.add(name)
    for reached, calls in ((concerned, by_unit), (to_backward, by_name)):
        while more := {caller for caller, called in calls.items() if caller not in reached and called & reached}:
            reached |= more
    if "" in concerned:
        concerned |= {*names.functions, *classes}
    followed: list[tuple[Function, ast.ClassDef | None]]
    followed = [(function, None) for name, function in names.functions.items() if name in concerned]
    for cls in classes.values():
        if any(ancestor.name in concerned for ancestor in names.lineage(cls)):
            followed += [(method, cls) for method in methods_of(cls)]
    ends = "" in concerned & to_backward or any(function.name in to_backward for function, _ in followed)
    return [each for each in followed if each[0].name in dealing | to_backward] if ends else None


def prepares(func: ast.expr) -> bool:
    """Tell whether a callee is `accelerator.prepare`."""
    return isinstance(func, ast.Attribute) and func.attr in ("prepare", "prepare_model") and is_accelerator(func.value)
