"""A series' folder is written as a whole or not at all, and no human's text in it is lost."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ckpt_surgery.errors import UpstreamError
from ckpt_surgery.upstream.run.output_folder import check_folder, output_folder, write_documents

DOCUMENTS = {"evidence.json": "{}\n", "evidence.md": "# Evidence\n", "siblings.md": "\n", "body.md": "facts\n"}


def deliver(out: Path, patch: str = "oak", **changed: str) -> str:
    documents = {**DOCUMENTS, **{f"{name}.md": text for name, text in changed.items()}}
    with output_folder(out, "oak") as folder:
        (folder / f"0001-{patch}.patch").write_text("patch\n")
        return write_documents(folder, documents, out / "oak")


def refusal(out: Path, checkout: Path, *names: str) -> str:
    with pytest.raises(UpstreamError) as error:
        check_folder(out, checkout, names)
    return str(error.value)


def test_a_series_is_written(tmp_path: Path) -> None:
    assert deliver(tmp_path / "out") == ""
    names = {path.name for path in (tmp_path / "out" / "oak").iterdir()}
    assert names == {*DOCUMENTS, "0001-oak.patch", ".made.json"}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["oak"]


def test_a_series_replaces_the_one_before(tmp_path: Path) -> None:
    deliver(tmp_path)
    assert deliver(tmp_path, "elm", evidence="# More\n") == ""
    assert (tmp_path / "oak" / "evidence.md").read_text() == "# More\n"
    assert [path.name for path in (tmp_path / "oak").glob("*.patch")] == ["0001-elm.patch"]
    assert [path.name for path in tmp_path.iterdir()] == ["oak"]


def test_words_of_the_humans_stay_through_every_rerun(tmp_path: Path) -> None:
    deliver(tmp_path)
    (tmp_path / "oak" / "body.md").write_text("my words\n")
    (tmp_path / "oak" / "letter.txt").write_text("to the maintainers\n")
    for number in range(2):
        said = deliver(tmp_path, body=f"facts {number}\n")
        assert said.endswith(
            "oak were kept (body.md and letter.txt); new versions beside them have .new in their names"
        )
        assert (tmp_path / "oak" / "body.md").read_text() == "my words\n"
        assert (tmp_path / "oak" / "letter.txt").read_text() == "to the maintainers\n"
        assert (tmp_path / "oak" / "body.new.md").read_text() == f"facts {number}\n"
    (tmp_path / "oak" / "body.new.md").write_text("both\n")
    deliver(tmp_path, body="facts 2\n")
    texts = [(tmp_path / "oak" / name).read_text() for name in ("body.md", "body.new.md", "body.new.new.md")]
    assert texts == ["my words\n", "both\n", "facts 2\n"]


@pytest.mark.parametrize("end", [RuntimeError, KeyboardInterrupt])
def test_what_ends_early_leaves_the_folder_as_it_was(tmp_path: Path, end: type[BaseException]) -> None:
    out = tmp_path / "out"

    def stop() -> None:
        with output_folder(out, "oak") as folder:
            (folder / "evidence.json").write_text("half")
            raise end

    with pytest.raises(end):
        stop()
    assert not out.exists()
    deliver(out)
    with pytest.raises(end):
        stop()
    assert (out / "oak" / "evidence.json").read_text() == "{}\n"
    assert [path.name for path in out.iterdir()] == ["oak"]


def test_a_full_disk_is_reported_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_text

    def full(self: Path, text: str, **options: str) -> int:
        if self.name == "evidence.md":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(self, text, **options)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UpstreamError, match=r"oak could not be written: No space left on device$"):
        deliver(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_move_that_fails_puts_the_old_folder_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deliver(tmp_path)
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name.startswith(".oak-") and not self.name.endswith(".old"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(UpstreamError, match="Permission denied"):
        deliver(tmp_path, evidence="# More\n")
    assert (tmp_path / "oak" / "evidence.md").read_text() == "# Evidence\n"
    assert [path.name for path in tmp_path.iterdir()] == ["oak"]


def test_places_that_will_not_do_are_refused_before_the_work(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    check_folder(tmp_path / "new" / "out", checkout, ("oak",))
    assert "lies in the checkout, which is never written to" in refusal(checkout / "out", checkout)
    assert "lies in the checkout" in refusal(checkout, checkout)
    (tmp_path / "file").write_text("")
    assert "is not a folder" in refusal(tmp_path / "file" / "out", checkout)
    (tmp_path / "out" / "oak").mkdir(parents=True)
    (tmp_path / "out" / "oak" / "letters.txt").write_text("mine\n")
    assert "was not made by this command: move it away" in refusal(tmp_path / "out", checkout, "oak")
    check_folder(tmp_path / "out", checkout, ("elm",))
