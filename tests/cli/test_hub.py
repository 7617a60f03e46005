"""The configuration of a model on the Hub: from the cache, from a server, or one sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

pytest.importorskip("transformers")

from huggingface_hub import constants, file_download

from ckpt_surgery.cli.released import config_of
from ckpt_surgery.errors import PlanningError
from ckpt_surgery.survey.resolve import resolve
from tests.planning.test_target import SMALL

pytestmark = [pytest.mark.torch, pytest.mark.both]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
asked: list[str] = []


class Hub(BaseHTTPRequestHandler):
    """A Hub with one model's configuration, one model that asks for consent, and no other."""

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.wfile.write(self.answer())

    def answer(self) -> bytes:
        if "/resolve/" in self.path:  # a file; the client also asks for news
            asked.append(self.path)
        content = json.dumps(SMALL).encode() if self.path == "/someone/small/resolve/main/config.json" else b""
        self.send_response(200 if content else 403 if "gated" in self.path else 404)
        if not content:
            self.send_header("X-Error-Code", "GatedRepo" if "gated" in self.path else "RepoNotFound")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", '"abc"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        return content

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Serve as the Hub for the client, with an empty cache."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    for module in (constants, file_download):
        for name, value in (
            ("ENDPOINT", address),
            ("HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}"),
            ("HF_HUB_OFFLINE", False),
            ("HF_HUB_CACHE", str(tmp_path)),
        ):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    asked.clear()
    yield tmp_path
    server.shutdown()
    server.server_close()


def test_the_config_alone_is_downloaded_once(hub: Path) -> None:
    path = config_of("someone/small")
    assert {target.model for target in resolve([path], variants=False)} == {"LlamaForCausalLM"}
    assert set(asked) == {"/someone/small/resolve/main/config.json"}
    asked.clear()
    assert config_of("someone/small") == path
    assert asked == []


@pytest.mark.parametrize(
    ("name", "why"), [("someone/gated", "accept the terms on its page"), ("someone/none", "the Hub has no such model")]
)
def test_what_the_hub_does_not_give_is_reported(hub: Path, name: str, why: str) -> None:
    with pytest.raises(PlanningError, match=f"{name} is neither a folder .*{why}.*give the path of a config.json"):
        config_of(name)


def test_a_folder_that_is_here_goes_before_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "someone" / "small").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert config_of("someone/small") == "someone/small"
