"""Places to write to: each that cannot be written is one sentence with a remedy."""

from pathlib import Path

import pytest

from saf_titan.fields.places import require_file_place, require_input, require_input_file, require_new_folder


def test_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text("mine")
    require_input_file(tmp_path / "text.txt", "a text")
    require_input(tmp_path, "a place")
    for name, message in [
        ("tekst.txt", "tekst.txt does not exist: give a text; did you mean .*/text.txt"),
        ("other", "other does not exist: give a text$"),
        ("none/text.txt", "none/text.txt does not exist: give a text$"),
        ("text.txt/x", "text.txt/x does not exist: give a text$"),
        ("", "is a folder: give a text$"),
    ]:
        with pytest.raises(ValueError, match=message):
            require_input_file(tmp_path / name, "a text")
    # a user who may read everything runs some tests
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(ValueError, match=r"text\.txt may not be read: change its permissions, or give a text"):
        require_input(tmp_path / "text.txt", "a text")


def test_new_folders(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    require_new_folder(tmp_path / "new")
    require_new_folder(tmp_path / "new/deeper")
    for name, message in [("", "exists already"), ("file", "exists already"), ("file/new/x", "file is a file; choose")]:
        with pytest.raises(ValueError, match=message):
            require_new_folder(tmp_path / name)
    assert not (tmp_path / "new").exists()
    # a place where even the owner of the machine can make no folder
    with pytest.raises(ValueError, match=r"^/proc/new/x cannot be made \(.*\); mend that, or choose another place$"):
        require_new_folder(Path("/proc/new/x"))


def test_folders_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    for require in (require_new_folder, require_file_place):
        with pytest.raises(ValueError, match=f"new cannot be written: {tmp_path} is read-only; change its permissions"):
            require(tmp_path / "new")


def test_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    require_file_place(tmp_path / "new")
    require_file_place(tmp_path / "file")
    # looking leaves no trace
    assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match=r"^/proc/file cannot be written \(.*\); mend that, or choose another place$"):
        require_file_place(Path("/proc/file"))
    for name, message in [
        ("", "is a folder; give the name of a file"),
        ("none/x", "no folder .*none; make it"),
        ("file/x", "file is a file; choose"),
    ]:
        with pytest.raises(ValueError, match=message):
            require_file_place(tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine"
