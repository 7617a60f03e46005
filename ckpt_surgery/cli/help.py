"""The help of the commands: options in groups, in few lines, without the types that typer would show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup

_NAMES = 26
"""The width of the column of option names: the text of a longer name starts on the next line."""


class GroupedCommand(TyperCommand):
    """A command whose help lists arguments and options by their `rich_help_panel`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the arguments by their metavars, optional ones in brackets."""
        pieces = ["[OPTIONS]"]
        for parameter in self.get_params(ctx):
            if parameter.param_type_name == "argument":
                name = f"{parameter.metavar}{'...' if parameter.nargs == -1 else ''}"
                pieces.append(name if parameter.required else f"[{name}]")
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the options in no group, and the groups in the order of their first options."""
        rows = [("Arguments", "", ""), ("Options", "", "")]
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:  # None for a hidden option
                is_argument = parameter.param_type_name == "argument"
                group = getattr(parameter, "rich_help_panel", None)  # `--help` has none
                text = record[1].removesuffix("[required]").strip()
                rows.append((group or ("Arguments" if is_argument else "Options"), _names(parameter), text))
        _write_groups(rows, formatter)


class GroupedCommands(TyperGroup):
    """The program, whose help lists the commands by their `rich_help_panel`."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands of each group."""
        commands: list[Any] = [self.get_command(ctx, name) for name in self.list_commands(ctx)]
        _write_groups(
            [(each.rich_help_panel, each.name, each.get_short_help_str(200)) for each in commands], formatter
        )


def _write_groups(rows: Iterable[tuple[str, str, str]], formatter: Any) -> None:
    groups: dict[str, list[tuple[str, str]]] = {}
    for group, names, text in rows:
        groups.setdefault(group, []).extend([(names, text)] if names else [])
    for group, entries in groups.items():
        if entries:
            with formatter.section(group):
                formatter.write_dl(entries, col_max=_NAMES)


def _names(parameter: Any) -> str:
    """Return an option as it is typed, with the metavar of its value: `--[no-]wrap` for a pair."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar)
    names = ", ".join(sorted(parameter.opts, key=len))
    if parameter.secondary_opts:
        names = names.replace("--", "--[no-]", 1)
    return names if parameter.is_flag else f"{names} {parameter.metavar}"
