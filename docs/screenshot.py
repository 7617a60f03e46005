"""Take a screenshot of the page of `verify`: `python -m docs.screenshot`.

This needs torch, transformers 4.57.6, matplotlib and Chromium. A few classes are verified, as they are and after
`wrap_blocks`, and the HTML page without its legend goes to docs/pictures/verify.png. The file also holds its text, so
that a test can compare it with a new run.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from ckpt_surgery.measure.results import QUICK_LEVELS

if TYPE_CHECKING:
    from PIL.Image import Image

PICTURE = Path(__file__).parent / "pictures" / "verify.png"
RELEASE = "4.57.6"
CLASSES = ("GPTBigCodeForCausalLM", "ImageGPTModel", "AlignModel", "MixtralForCausalLM")
"""Four that fail for different reasons; Mixtral is healthy without the router loss."""
CHROMIUM_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
WIDTH, HEIGHT = 1234, 1400
"""The window in CSS pixels: as narrow as the table allows, and higher than the page."""
SCALE = 1.5
MARGIN = 24
COLOURS = 32
"""A page is flat: with so few colours it looks the same, and the file is a third as large."""


def chromium() -> str | None:
    """Return the path of Chromium or Chrome; None if neither is installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def verified(folder: Path) -> str:
    """Run `verify --fix` on `CLASSES`, and return the HTML page that it writes."""
    page = folder / "page.html"
    levels = ",".join(QUICK_LEVELS)
    command = [sys.executable, "-m", "ckpt_surgery", "verify", *CLASSES, "--fix", "--exit-zero", "--levels", levels]
    command += ["--output-format", "html", "--output", str(page)]
    environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"} | os.environ
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return page.read_text(encoding="utf-8")


def photograph(page: str, browser: str) -> Image:
    """Take a screenshot of the page, without its legend at the end and the empty space around it."""
    from PIL import Image, ImageChops

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "page.html").write_text(re.sub(r"<footer>.*?</footer>", "", page, flags=re.DOTALL), encoding="utf-8")
        window = [f"--window-size={WIDTH},{HEIGHT}", f"--force-device-scale-factor={SCALE}"]
        files = [f"--user-data-dir={folder / 'profile'}", f"--screenshot={folder / 'page.png'}"]
        command = [browser, *CHROMIUM_OPTIONS, *window, *files, (folder / "page.html").as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        whole = Image.open(folder / "page.png").convert("RGB")
    ground = Image.new("RGB", whole.size, whole.getpixel((0, 0)))
    _, _, _, bottom = ImageChops.difference(whole, ground).getbbox() or (0, 0, 0, 0)
    return whole.crop((0, 0, whole.width, min(whole.height, bottom + round(MARGIN * SCALE))))


def text_of(page: str) -> str:
    """Return the text in the picture: title, counts, causes, and a line for each model."""
    shown = r'<header>.*?</header>|<section class="causes">.*?</section>|<summary class="row">.*?</summary>'
    parts = re.findall(shown, page, re.DOTALL)
    return "\n".join(" ".join(html.unescape(re.sub(r"<[^>]+>", " ", part)).split()) for part in parts)


def write(picture: Image, text: str, path: Path) -> None:
    """Write the picture as a small PNG that also holds its text."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    about = PngInfo()
    about.add_itxt("Description", text)
    flat = picture.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    flat.save(path, optimize=True, pnginfo=about)


def main() -> int:
    """Verify, take the screenshot and write it. Return 2 if something it needs is missing."""
    argparse.ArgumentParser(prog="python -m docs.screenshot", description=__doc__).parse_args()
    browser = chromium()
    if browser is None:
        print("Chromium was not found: install Debian's package chromium.", file=sys.stderr)
        return 2
    if (installed := version("transformers")) != RELEASE:
        print(f"The picture shows transformers {RELEASE}, and {installed} is installed.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        page = verified(Path(folder))
    write(photograph(page, browser), text_of(page), PICTURE)
    print(f"docs/pictures/{PICTURE.name}: {PICTURE.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
