"""The folder that `--output` names: the pages are written beside their place and moved there as a whole."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from ckpt_surgery.adopt.adoption import Adoption
from ckpt_surgery.adopt.document import adoption_json
from ckpt_surgery.adopt.folder import AdoptError, ModelFolder
from ckpt_surgery.adopt.model_card import model_card
from ckpt_surgery.adopt.pull_request import DIFF, pull_request


def check_output(out: Path, folder: ModelFolder) -> None:
    """Notice before the work that the pages could not be written.

    Raises:
        AdoptError: the place is inside the model's folder, is no folder, is not empty, or cannot be made.
    """
    if out.resolve().is_relative_to(folder.path.resolve()):
        raise AdoptError(f"--output {out} lies in the model's folder: name one outside {folder.path}")
    if out.exists() and not out.is_dir():
        raise AdoptError(f"--output {out} is a file: name a folder")
    if out.is_dir() and any(out.iterdir()):
        raise AdoptError(f"--output {out} is not empty, and nothing in it is overwritten: name a new folder")
    if not out.absolute().parent.is_dir():
        raise AdoptError(f"--output {out} cannot be made: there is no folder {out.absolute().parent}")


def documents(adoption: Adoption) -> dict[str, bytes]:
    """The pages by file name. What there is nothing to say in is left out: a diff without a repair, a card without a
    proof.
    """
    texts = {"model_card.md": model_card(adoption)} if adoption.measured else {}
    texts |= {"pull_request.md": pull_request(adoption)} if adoption.source.patches else {}
    texts["adopt.json"] = adoption_json(adoption)
    pages = {name: text.encode("utf-8", "backslashreplace") for name, text in texts.items()}
    return {DIFF: adoption.source.diff, **pages} if adoption.source.patches else pages


def write_pages(adoption: Adoption, out: Path) -> tuple[str, ...]:
    """Write the pages into `out`, which is new or empty, and return their names.

    Raises:
        AdoptError: they cannot be written.
    """
    pages = documents(adoption)
    place = out.absolute()
    try:
        scratch = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
        try:
            for name, data in pages.items():
                (scratch / name).write_bytes(data)
            scratch.chmod(0o755)
            if place.is_dir():
                place.rmdir()
            scratch.rename(place)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise AdoptError(f"--output {out} cannot be written to: {error.strerror or error}") from None
    return tuple(pages)
