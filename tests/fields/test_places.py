"""Places to write to: each that cannot be written is one sentence with a remedy."""

from pathlib import Path

import pytest

from saf_titan.fields.places import require_file_place, require_new_folder


def test_new_folders(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    require_new_folder(tmp_path / "new")
    require_new_folder(tmp_path / "new/deeper")
    for name, message in [("", "exists already"), ("file", "exists already"), ("file/new/x", "file is a file; choose")]:
        with pytest.raises(ValueError, match=message):
            require_new_folder(tmp_path / name)
    assert not (tmp_path / "new").exists()


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
