"""What `explain` and `plan` share: the options for the model, its size and its training, and resolving its name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from logging import ERROR, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from ckpt_surgery.cli.options import choice_names, choice_of, count
from ckpt_surgery.errors import OptionError, PlanningError
from ckpt_surgery.planning.devices import NAMES
from ckpt_surgery.planning.training import Optimizer
from ckpt_surgery.text import error_line

if TYPE_CHECKING:
    from ckpt_surgery.planning.target import ReleasedModel
    from ckpt_surgery.survey.target import SurveyTarget

_CONFIG = "config.json"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_BATCH, _DEVICES = "What is trained", "On which devices"


class WeightDtype(StrEnum):
    """The dtype of the weights."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


Model: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A model on the Hub (meta-llama/Llama-3.1-8B), a config.json or its folder, a class, a model type "
        "(llama), or FILE.py:factory.",
    ),
]
Tokens: TypeAlias = Annotated[
    int | None,
    typer.Option(
        parser=count,
        metavar="N",
        rich_help_panel=_BATCH,
        help="Sequence length in tokens (default: 2048, or the model's maximum if shorter).",
    ),
]
Batch: TypeAlias = Annotated[
    int | None,
    typer.Option(parser=count, metavar="N", rich_help_panel=_BATCH, help="Batch size (default: 1)."),
]
Dtype: TypeAlias = Annotated[
    WeightDtype,
    typer.Option(
        parser=choice_of(WeightDtype),
        metavar=choice_names(WeightDtype),
        rich_help_panel=_BATCH,
        help="The dtype of the weights.",
    ),
]
Lora: TypeAlias = Annotated[
    int | None,
    typer.Option(
        parser=count,
        metavar="RANK",
        rich_help_panel=_BATCH,
        help="Freeze the model and train adapters of this rank on its linear layers.",
    ),
]
FourBits: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--load-in-4bit",
        rich_help_panel=_BATCH,
        help="With --lora: keep the frozen linear layers in 4 bits, as in QLoRA.",
    ),
]
CountedOptimizer: TypeAlias = Annotated[
    Optimizer,
    typer.Option(
        parser=choice_of(Optimizer),
        metavar="NAME",
        rich_help_panel=_BATCH,
        help=f"Optimizer whose state is counted: {', '.join(Optimizer)}.",
    ),
]
Ranks: TypeAlias = Annotated[
    int | None,
    typer.Option(
        parser=count,
        metavar="N",
        rich_help_panel=_DEVICES,
        help="Number of devices that share the model; sizes are per device.",
    ),
]
Fsdp: TypeAlias = Annotated[
    bool, typer.Option("--fsdp", rich_help_panel=_DEVICES, help="With --ranks: FSDP2, one unit per block.")
]
Zero: TypeAlias = Annotated[
    int | None,
    typer.Option(
        parser=count,
        metavar="STAGE",
        rich_help_panel=_DEVICES,
        help="With --ranks: DeepSpeed ZeRO stage 1, 2 or 3.",
    ),
]
DeviceName: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="DEVICE", rich_help_panel=_DEVICES, help=f"The card: {NAMES} or a .toml file."),
]
TrustRemoteCode: TypeAlias = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run the code in the model's folder.")
]


def sharding_of(*, fsdp: bool, zero: int | None) -> str | None:
    """Return the sharding that two options name. Raises PlanningError if both are given."""
    if fsdp and zero:
        raise PlanningError("--fsdp and --zero are two ways to divide a model: give one of them")
    return f"zero{zero}" if zero else "fsdp" if fsdp else None


def check_adapters(lora: int | None, *, four_bits: bool) -> None:
    """Raise OptionError if 4-bit weights would be trained: they need adapters."""
    if four_bits and not lora:
        raise OptionError("--load-in-4bit freezes the linear layers: give --lora RANK too, or leave it out")


def check_own_inputs(found: ReleasedModel, tokens: int | None, batch: int | None) -> None:
    """Raise OptionError where a size is given, and a factory returned inputs of its own."""
    if found.has_own_inputs and (tokens or batch):
        option = "--tokens" if tokens else "--batch"
        raise OptionError(f"{option} is for inputs that are made here, and the factory returned its own: leave it out")


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings of the libraries, which are about training: nothing is trained here."""
    import warnings

    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    hub = getLogger("huggingface_hub")
    level = hub.level
    hub.setLevel(ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)
        hub.setLevel(level)


def target_named(name: str, *, trust_remote_code: bool) -> SurveyTarget:
    """Return the model that a name stands for. Raises TargetError, and PlanningError like `config_of`."""
    from ckpt_surgery.planning.target import main_class
    from ckpt_surgery.survey.resolve import resolve

    return main_class(resolve([config_of(name)], trust_remote_code=trust_remote_code, variants=False))


def config_of(name: str) -> str:
    """Return the path of a Hub model's config.json; return any other name, and a folder that exists here, unchanged.

    The file is read from the Hub's cache, or else downloaded into it, by the client and with the token of
    `from_pretrained`. Nothing else is downloaded, and no code.

    Raises:
        PlanningError: the file is not in the cache and cannot be downloaded.
    """
    if not _REPOSITORY.fullmatch(name) or name.endswith((".json", ".py")) or Path(name).exists():
        return name
    from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    cached = try_to_load_from_cache(name, _CONFIG)
    if isinstance(cached, str):
        return cached
    try:
        return hf_hub_download(name, _CONFIG)
    except GatedRepoError:
        why = "its authors ask for consent first: accept the terms on its page, and log in with `hf auth login`"
    except RepositoryNotFoundError:
        why = "the Hub has no such model, or it is private: `hf auth login` gives a token"
    except LocalEntryNotFoundError:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the Hub cannot be reached"
    except EntryNotFoundError:
        why = "the Hub has none for it"
    except Exception as error:  # the client lets errors of its transport through
        why = error_line(error)
    raise PlanningError(
        f"{name} is neither a folder here nor in the Hub's cache, and its {_CONFIG} cannot be downloaded: {why}; or "
        f"give the path of a {_CONFIG}"
    )
