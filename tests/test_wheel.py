"""The wheel is all that a user needs: no clone, no Rust, an empty folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    # the extension is compiled already: this takes the time of packing
    command = [sys.executable, "-m", "maturin", "build", "--release", "--quiet", "--out", str(out)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1200)
    assert result.returncode == 0, result.stderr
    (path,) = out.glob("*.whl")
    return path


def test_what_is_in_it(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    files = {name for name in names if ".dist-info/" not in name and not name.endswith(".py")}
    configs = {f"saf_titan/{path.relative_to(ROOT)}" for path in (ROOT / "configs").rglob("*.toml")}
    assert configs <= files
    assert {
        "saf_titan/py.typed",
        "rust_data/py.typed",
        "saf_titan/report/report.css",
        "saf_titan/report/report.js",
    } <= files
    others = {name for name in files - configs if not name.endswith((".so", "py.typed", ".css", ".pyi", ".js"))}
    assert {Path(name).parts[:2] for name in others} == {("rust_data", "assets")}
    assert not [name for name in names if name.endswith((".rs", "make_unicode_ranges.py")) or "/tests/" in name]
    source = {str(path.relative_to(ROOT)) for package in ("saf_titan", "rust_data") for path in package_files(package)}
    assert source <= set(names)


def package_files(package: str) -> list[Path]:
    return [path for path in (ROOT / package).rglob("*.py") if path.parent.name not in ("tests", "assets", "benches")]


def test_the_main_job_runs_from_it_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    site, folder = tmp_path / "site", tmp_path / "empty"
    shutil.unpack_archive(wheel, site, format="zip")
    folder.mkdir()
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("CARGO", "RUST"))},
        "PYTHONPATH": str(site),
        "PATH": os.defpath,
        "SAF_TITAN_DEVICE": "cpu",
        "OMP_NUM_THREADS": "1",
    }

    def run(*words: str) -> str:
        command = [sys.executable, *words]
        result = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout + result.stderr

    assert shutil.which("cargo", path=environment["PATH"]) is None
    for package in ("saf_titan", "rust_data._native"):
        assert str(site) in run("-c", f"import {package}; print({package}.__file__)")
    run("-m", "rust_data.tokenize", "sample:edu", "--out", "data/sample_edu", "--val-tokens", "100K")
    options = {
        "training.steps": 4,
        "lr_scheduler.warmup_steps": 1,
        "saf.step": 2,
        "validator.tokens": 512,
        "saf.calibration_sequences": 4,
    }
    words = [f"--{key}={value}" for key, value in options.items()]
    lines = run("-m", "saf_titan.train", "--config", "debug_cpu", *words, "--training.global_batch_size=4")
    assert "Froze 8 heads" in lines
    assert (folder / "outputs" / "debug_cpu" / "report.html").is_file()
