"""The commands that look for the same work by others."""

from __future__ import annotations

import re
import shlex

from ckpt_surgery.upstream.evidence.results import Evidence
from ckpt_surgery.upstream.layout import UPSTREAM

_TOPIC = "gradient checkpointing"


def search_commands(evidence: Evidence) -> list[str]:
    """The commands that search upstream's open issues and pull requests."""
    issue = re.search(r"/issues/(\d+)", evidence.coordination)
    phrases = [f"{issue[1]} in:body"] if issue else []
    phrases += [_TOPIC, *(f"{family} {_TOPIC}" for family in evidence.families)]
    options = ["--repo", UPSTREAM, "--state", "open", "--search"]
    view = ["gh", "issue", "view", evidence.coordination, "--comments"]
    return [
        *([shlex.join(view)] if evidence.coordination else []),
        shlex.join(["gh", "issue", "list", *options, _TOPIC]),
        *(shlex.join(["gh", "pr", "list", *options, phrase]) for phrase in phrases),
    ]
