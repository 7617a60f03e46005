"""Many reports as one JSON document for machines; a single one is `Report.to_json`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence

from ckpt_surgery.measure.report import Report
from ckpt_surgery.report.summary import counts, repair_counts, versions_of, with_skips

JSON_SCHEMA_VERSION = 1
"""Raised when a key changes its meaning or goes; new keys leave it as it is."""


def survey_json(reports: Sequence[Report], *, seconds: float | None = None) -> str:
    """Render one object: how many classes came out how, and under `reports` exactly what each `Report.to_json` gives.

    The reports keep their order. `unjudged` is the number of those with a level that could not be judged. `repairs`
    are the counts after `wrap_blocks`, null where that was not tried, and `seconds` is the wall-clock time of it all,
    null where unknown.
    """
    from ckpt_surgery.version import __version__

    head = {
        "schema_version": JSON_SCHEMA_VERSION,
        "tool": {"name": "ckpt_surgery", "version": __version__},
        "versions": versions_of(reports),
        "seconds": None if seconds is None else round(seconds, 3),
        "counts": counts(reports),
        "unjudged": len(with_skips(reports)),
        "repairs": repair_counts(reports) or None,
    }
    opening = json.dumps(head, indent=2).removesuffix("\n}")
    listed = ",\n".join(textwrap.indent(report.to_json().rstrip(), "    ") for report in reports)
    return f'{opening},\n  "reports": [\n{listed}\n  ]\n}}\n'
