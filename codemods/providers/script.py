"""The facts of a file as a training script; None where no rule about scripts has anything to look at."""

from __future__ import annotations

from ckpt_surgery.codemods.facts.fact import FileFact
from ckpt_surgery.codemods.facts.script_facts import ScriptFacts
from ckpt_surgery.codemods.scripts.extract import SIGNS, extract_script, may_be_script

SCRIPT = FileFact[ScriptFacts | None](
    "script", lambda file: extract_script(file.tree, file.source), nothing=None, signs=SIGNS, worth=may_be_script
)
