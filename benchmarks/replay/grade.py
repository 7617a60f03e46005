"""Grades what the codemods made of a call site or class against what people made of it by hand."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.replay.sites import Arguments, ClassFact, Site, Snapshot, Wanted

SHOWN = 4
"""The lines of a changed body that are shown."""
PAST = {
    "past_key_value", "past_key_values", "layer_past", "past_states", "past_buckets_states", "cache_params", "cache",
    "kv_cache", "padding_cache", "state", "mems", "shared_kv_states", "prev_states", "encoder_past_key_values",
}  # fmt: skip
GRADIENT = {
    "hidden_states", "hidden_state", "hidden", "x", "input", "residual", "activations", "inputs_embeds",
    "hidden_states_in", "encoder_hidden_states", "vision_encoder_hidden_states", "text_encoder_hidden_states",
    "image_hidden_states", "original_hidden_states", "word_hidden_states", "entity_hidden_states",
    "global_hidden_states", "decoder_embeddings", "cross_attention_states", "vision_features", "task_features",
    "text_features", "queries", "keys", "query_states", "query_embeds", "position_bias",
    "encoder_decoder_position_bias", "relative_position_bias", "rel_embeddings", "rel_pos", "rel_2d_pos",
    "object_queries", "query_position_embeddings", "query_position", "query_sine_embed", "query_point_embedding",
    "protein_kv_states", "structure_kv_states", "msa_kv_states", "bbox_pos_emb", "layout_inputs", "per_layer_input",
    "self_attn_prompt", "cross_attn_prompt", "input_features", "mel_spec",
}  # fmt: skip
"""What the names of arguments mean: a list of its own, kept apart from the codemods' vocabulary."""
LEARNED = {"position_embeddings": "query", "reference_points": "reference_points_input"}
"""Names that carry gradient only where the expression says so.

Position embeddings where they are those of learned queries, reference points where a decoder scales its own
for the levels; elsewhere both are computed from shapes alone.
"""


def carries_gradient(parameter: str, expression: str) -> bool:
    """Tell whether an argument can carry gradient, by its parameter, or its expression if no signature names it."""
    name = _name(parameter, expression)
    return name in GRADIENT or (name in LEARNED and LEARNED[name] in expression)


def is_past(parameter: str, expression: str) -> bool:
    """Tell whether an argument is past state."""
    return _name(parameter, expression) in PAST


def _name(parameter: str, expression: str) -> str:
    return expression.rsplit(".", 1)[-1] if parameter.startswith("#") else parameter


MODULE = frozenset({"nn.Module", "torch.nn.Module", "Module"})


class Grade(StrEnum):
    """The grades of a site or class, in the table's order."""

    IDENTICAL = "identical"
    HARMLESS = "harmless"
    SAFER = "safer"
    CHANGED = "changed upstream"
    LEFT_ALONE = "left alone"
    WORSE = "worse"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One site or class of BEFORE, graded, with its text in each tree, "" where it is gone.

    `inline` tells that BEFORE checkpoints here, `comparable` that the model's flag switches that and that
    upstream still makes the same call, without a branch.
    """

    grade: Grade
    path: str
    class_name: str
    line: int
    before: str
    ours: str
    upstream: str
    reasons: tuple[str, ...]
    inline: bool = False
    comparable: bool = False


def grade_sites(before: Snapshot, ours: Snapshot, upstream: Snapshot) -> list[Comparison]:
    """Grade every inline branch of BEFORE, and every plain call whose block is a layer before or afterwards."""
    kept, made = align(before.sites, ours.sites), align(before.sites, upstream.sites)
    graded = []
    for site in before.sites:
        our, their = kept.get(site), made.get(site)
        if site.inline or any(s and s.layers for s in (site, our, their)):
            graded.append(grade_site(site, our, their))
    return graded


def grade_site(before: Site, ours: Site | None, upstream: Site | None) -> Comparison:
    """Grade one site. Unless ours is upstream's very call, a fault of ours outweighs every other difference."""
    faults = _faults(before, ours, upstream)
    if before.inline and not before.switched and ours and ours.inline and ours.arguments == before.arguments:
        grade, reasons = Grade.LEFT_ALONE, ["the checkpoint call does not hang on the model's flag"]
    elif ours and upstream and ours.body in (before.body, upstream.body) and _same(ours, upstream):
        grade, reasons = Grade.IDENTICAL, []
    elif faults or ours is None:
        grade, reasons = Grade.WORSE, faults
    elif upstream is None:
        grade, reasons = Grade.CHANGED, ["upstream no longer has this call"]
    else:
        grade, reasons = _differences(before, ours, upstream)
    return Comparison(
        grade=grade,
        path=before.path,
        class_name=before.class_name,
        line=before.line,
        before=before.text,
        ours=ours.text if ours else "",
        upstream=upstream.text if upstream else "",
        reasons=tuple(reasons),
        inline=bool(before.inline),
        comparable=before.switched
        and upstream is not None
        and not upstream.inline
        and upstream.callee == before.callee,
    )


def _faults(before: Site, ours: Site | None, upstream: Site | None) -> list[str]:
    """Return what makes ours worse, whatever upstream did: each as a sentence."""
    if ours is None:
        return ["the call is gone"]
    faults = []
    if ours.inline:
        faults.append("the inline branch is left")
    theirs = upstream.layers if upstream else ()
    plain = [name for name in theirs if name in ours.blocks and name not in ours.layers]
    if plain or (theirs and not ours.layers):
        faults.append(f"{' or '.join(plain) or _names(ours)} is no layer, upstream's is")
    elif before.inline and before.blocks and not ours.inline and not ours.layers:
        faults.append(f"the inline branch is gone and {_names(ours)} is no layer: nothing is recomputed any more")
    if ours.target != before.target:
        faults.append(f"the result goes elsewhere: {before.target} became {ours.target}")
    elif before.body and (lines := changed_lines(before.body, ours.body)):
        faults.append(f"other code of the method changed: {lines}")
    return faults + _changed_arguments(before, ours) + _wrong_kinds(before, ours, upstream)


def _changed_arguments(before: Site, ours: Site) -> list[str]:
    """Arguments that ours lost, changed or invented. A gap filled with the parameter's default is neither."""
    old, new = before.arguments.bound, ours.arguments.bound
    defaults = dict(ours.signature.defaults) if ours.signature else {}
    faults = [f"lost {name}={value}" for name, value in old.items() if name not in new]
    faults += [
        f"{name}={value} became {new[name]}" for name, value in old.items() if name in new and new[name] != value
    ]
    faults += [
        f"invented {name}={value}" for name, value in new.items() if name not in old and defaults.get(name) != value
    ]
    was, now = _spread(before.arguments), _spread(ours.arguments)
    if was != now:
        faults.append(f"{was or 'no **'} became {now or 'no **'}")
    return faults


def _wrong_kinds(before: Site, ours: Site, upstream: Site | None) -> list[str]:
    """Gradient arguments by keyword and past state by position, unless upstream and BEFORE have it so too."""
    if ours.through:  # the block that checkpoints itself is called inside the local function, a site of its own
        return []
    was, theirs = _kinds(before.arguments), _kinds(upstream.arguments) if upstream else {}

    def elsewhere(name: str, kind: str) -> bool:
        return kind in (was.get(name), theirs.get(name, None if upstream else kind))

    by_keyword = [name for name, value in ours.arguments.keywords if carries_gradient(name, value)]
    by_position = [name for name, value in ours.arguments.positional if is_past(name, value)]
    return [
        *(f"gradient argument {name} by keyword" for name in by_keyword if elsewhere(name, "position")),
        *(f"past state {name} by position" for name in by_position if elsewhere(name, "keyword")),
    ]


def _kinds(arguments: Arguments) -> dict[str, str]:
    return dict.fromkeys(dict(arguments.keywords), "keyword") | dict.fromkeys(dict(arguments.positional), "position")


def _spread(arguments: Arguments) -> str:
    return ", ".join([*(f"*{name}" for name in arguments.stars), *(f"**{name}" for name in arguments.double_stars)])


def _differences(before: Site, ours: Site, upstream: Site) -> tuple[Grade, list[str]]:
    """Find how a faultless site differs from upstream's, and the grade that follows."""
    safer, changed, harmless = _sort_arguments(before, ours, upstream)
    if upstream.inline and not ours.inline:
        safer.append("upstream left the inline branch")
    safer += [f"upstream left {n} plain" for n in ours.layers if n in upstream.blocks and n not in upstream.layers]
    if ours.callee != upstream.callee:
        changed.append(f"upstream calls {upstream.callee} instead of {ours.callee}")
    if ours.target != upstream.target:
        changed.append(f"upstream's result goes elsewhere: {upstream.target}")
    if _spread(ours.arguments) != _spread(upstream.arguments):
        changed.append(f"upstream passes {_spread(upstream.arguments) or 'no **'}")
    reasons = safer + changed + harmless
    for grade, differences in ((Grade.SAFER, safer), (Grade.CHANGED, changed), (Grade.HARMLESS, harmless)):
        if differences:
            return grade, reasons
    # The blocks alone differ: their names, or which of several candidates are layers.
    return Grade.CHANGED, [f"upstream calls {_names(upstream)}, ours {_names(ours)}"]


def _same(ours: Site, upstream: Site) -> bool:
    """Tell whether two calls agree in all that is compared: no branch, bound arguments, keywords, target, layers."""
    one, other = ours.arguments, upstream.arguments
    return (
        not (ours.inline or upstream.inline)
        and (ours.callee, ours.target) == (upstream.callee, upstream.target)
        and (one.positional, one.stars, one.double_stars) == (other.positional, other.stars, other.double_stars)
        and dict(one.keywords) == dict(other.keywords)
        and bool(ours.layers) == bool(upstream.layers)
        and {*ours.layers} & {*upstream.blocks} == {*upstream.layers} & {*ours.blocks}  # it may have renamed one
    )


def _sort_arguments(before: Site, ours: Site, upstream: Site) -> tuple[list[str], list[str], list[str]]:
    """Differences between two bound calls: where ours is safer, where upstream changed the code, and the rest."""
    safer: list[str] = []
    changed: list[str] = []
    harmless: list[str] = []
    mine, theirs = ours.arguments.bound, upstream.arguments.bound
    my_kinds, their_kinds = _kinds(ours.arguments), _kinds(upstream.arguments)
    for name in dict.fromkeys((*mine, *theirs)):
        value = mine.get(name, theirs.get(name, ""))
        weighs = carries_gradient(name, value) or is_past(name, value)
        if name not in theirs or name not in mine:
            filler = name not in before.arguments.bound and value == "None"
            who = "upstream" if name in theirs else "ours"
            text = f"only {who} passes {name}={value}{', to fill a gap' if filler else ''}"
            (changed if weighs and not filler else harmless).append(text)
            continue
        if mine[name] != theirs[name]:
            changed.append(f"upstream passes {name}={theirs[name]} instead of {mine[name]}")
        if my_kinds[name] == their_kinds[name]:
            continue
        text = f"by {their_kinds[name]} upstream, by {my_kinds[name]} in ours"
        if weighs:
            safer.append(f"{'past state' if is_past(name, value) else 'gradient argument'} {name} {text}")
        else:
            harmless.append(f"{name} {text}")
    return safer, changed, harmless


def _names(site: Site) -> str:
    return " or ".join(site.blocks) or site.callee


def grade_classes(before: Snapshot, ours: Snapshot, upstream: Snapshot) -> list[Comparison]:
    """Grade every class of BEFORE that either side made a layer, and every other one whose bases ours changed."""
    mine = {fact.key: fact for fact in ours.classes}
    theirs = {fact.key: fact for fact in upstream.classes}
    graded = []
    for old in before.classes:
        our, their = mine.get(old.key), theirs.get(old.key)
        ours_changed = not old.imported and (our is None or our.bases != old.bases)
        if ours_changed or (their and their.is_layer_itself and not old.is_layer_itself):
            graded.append(grade_class(old, our, their))
    return graded


def grade_class(before: ClassFact, ours: ClassFact | None, upstream: ClassFact | None) -> Comparison:
    """Grade one class by its bases."""
    faults = _class_faults(before, ours, upstream)
    reasons: list[str] = []
    if ours and upstream and ours.bases == upstream.bases:
        grade = Grade.IDENTICAL
    elif faults:
        grade, reasons = Grade.WORSE, faults
    elif upstream is None:
        grade, reasons = Grade.CHANGED, ["upstream no longer has this class"]
    elif not upstream.is_layer:
        grade, reasons = Grade.SAFER, ["upstream left it plain"]
    elif set(before.bases) - set(upstream.bases) - MODULE:
        grade, reasons = Grade.CHANGED, ["upstream changed its other bases too"]
    else:
        grade, reasons = Grade.HARMLESS, ["a layer through other bases"]
    return Comparison(
        grade=grade,
        path=before.path,
        class_name=before.name,
        line=before.line,
        before=_heading(before),
        ours=_heading(ours),
        upstream=_heading(upstream),
        reasons=tuple(reasons),
    )


def _class_faults(before: ClassFact, ours: ClassFact | None, upstream: ClassFact | None) -> list[str]:
    if ours is None:
        return ["the class is gone"]
    faults = []
    if upstream and upstream.is_layer and not ours.is_layer:
        faults.append("no layer, upstream's is")
    elif not ours.is_layer:
        faults.append("its bases changed and it is no layer")
    if lost := [base for base in before.bases if base not in ours.bases and base not in MODULE]:
        faults.append(f"lost the base {', '.join(lost)}")
    return faults


def _heading(fact: ClassFact | None) -> str:
    if fact is None:
        return ""
    if fact.imported:
        return f"import {fact.bases[0]} as {fact.name}"
    return f"class {fact.name}({', '.join(fact.bases)})"


def wanted_by(before: Snapshot) -> Wanted:
    """Return the calls to look for in the other trees even where they call no block: those with an inline branch."""
    return frozenset((site.place, site.callee) for site in before.sites if site.inline)


_KEYS: Sequence[Callable[[Site], tuple[object, ...]]] = (
    lambda site: (site.place, site.callee),
    lambda site: (site.place, site.blocks or site.callee),
    lambda site: (site.place[:3], site.blocks or site.callee),
)
_SAME: Sequence[Callable[[Site, Site], bool]] = (
    lambda one, other: one.arguments.bound == other.arguments.bound,
    lambda one, other: one.target == other.target,
    lambda one, other: True,
)
"""By what sites are the same, from the surest on: in all, and within a group of as many as there are."""


def align(before: Iterable[Site], other: Iterable[Site]) -> dict[Site, Site]:
    """Match sites of two trees: by method, callee and order; then, for what is left, by the block's class."""
    left, right = list(before), list(other)
    partners: dict[Site, Site] = {}
    for key in _KEYS:
        pools: dict[tuple[object, ...], list[Site]] = defaultdict(list)
        taken = set(partners.values())
        for site in right:
            if site not in taken:
                pools[key(site)].append(site)
        waiting: dict[tuple[object, ...], list[Site]] = defaultdict(list)
        for site in left:
            if site not in partners:
                waiting[key(site)].append(site)
        for group, sites in waiting.items():
            partners.update(_pair(sites, pools.get(group, [])))
    return partners


def _pair(left: list[Site], right: list[Site]) -> dict[Site, Site]:
    """Pair in order; where the numbers differ, those with the same arguments, then the same target, go first."""
    if len(left) == len(right):
        return dict(zip(left, right, strict=True))
    partners: dict[Site, Site] = {}
    free = list(right)
    for same in _SAME:
        for site in left:
            partner = next((o for o in free if site not in partners and same(site, o)), None)
            if partner:
                partners[site] = partner
                free.remove(partner)
    return partners


def changed_lines(before: str, after: str) -> str:
    """Show what differs between two bodies, as `- line` and `+ line`, on one line and cut short."""
    pairs = difflib.ndiff(before.splitlines(), after.splitlines()) if before != after else ()
    lines = [f"{line[0]} {line[2:].strip()}" for line in pairs if line[0] in "+-"]
    return "; ".join(lines[:SHOWN] + (["..."] if len(lines) > SHOWN else []))
