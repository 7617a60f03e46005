"""Find a Hugging Face Hub model's config.json, in the cache or by downloading that file alone."""

from __future__ import annotations

import re
from pathlib import Path

from ckpt_surgery.errors import PlanningError
from ckpt_surgery.text import error_line

_CONFIG = "config.json"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


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
        why = "the Hub has none of it"
    except Exception as error:  # the client raises what its transport does
        why = error_line(error)
    raise PlanningError(
        f"{name} is not a folder here nor in the Hub's cache, and its {_CONFIG} cannot be downloaded: {why}; or give "
        f"the path of a {_CONFIG}"
    )
