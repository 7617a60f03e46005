"""The command `rule`: list the rules, or print the documentation of one."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ckpt_surgery.cli.config import ConfigError, expand_codes
from ckpt_surgery.cli.exits import ExitCode, finish
from ckpt_surgery.cli.terminal import width_of, write, write_lines
from ckpt_surgery.text import wrapped


def rule_command(
    code: Annotated[
        str | None, typer.Argument(metavar="CODE", help="A code such as CKPT003 (default: list all rules).")
    ] = None,
) -> None:
    """Explain a rule, or list them all."""

    def body() -> int:
        from ckpt_surgery.codemods import RULES

        if code is None:
            lines: list[str] = []
            for rule in RULES:
                summary = wrapped(rule.summary, width_of(sys.stdout), "    ", "    ")
                lines += [f"{rule.code} {rule.name}", *summary]
            write_lines(lines)
            return ExitCode.CLEAN
        for rule in RULES:
            if code.upper() == rule.code or code == rule.name:
                write(f"{rule.code} {rule.name}\n\n{rule.documentation.strip()}\n")
                return ExitCode.CLEAN
        expand_codes([code], [rule.code for rule in RULES], "rule")
        raise ConfigError(f"rule: {code} is a prefix of several codes: give a whole one, such as {RULES[0].code}")

    finish(body)
