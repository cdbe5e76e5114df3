"""A real browser shows the report as it is meant, on a light and on a dark screen."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from saf_titan.report import write_report
from tests.report.runs import write_frozen_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian: apt-get install chromium)")


def browse(profile: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
    return subprocess.run([CHROMIUM, *options, *arguments], capture_output=True, text=True, timeout=120, check=True)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(write_frozen_run(tmp_path_factory.mktemp("runs") / "run"))


def test_the_browser_keeps_every_element(report: Path, tmp_path: Path) -> None:
    dom = browse(tmp_path, "--dump-dom", report.as_uri()).stdout
    source = report.read_text()
    for tag in ("<svg", "<tr", "<figure", "<image", "<use", 'class="card"', "</footer>"):
        assert dom.count(tag) == source.count(tag), tag


# chromium counts dark as 0 and light as 1
@pytest.mark.parametrize(("scheme", "background"), [(1, (255, 255, 255)), (0, (20, 24, 29))])
def test_text_and_pictures_stand_out_from_the_page(
    report: Path, tmp_path: Path, scheme: int, background: tuple[int, int, int]
) -> None:
    file = tmp_path / "page.png"
    options = (f"--blink-settings=preferredColorScheme={scheme}", "--window-size=1100,3000", f"--screenshot={file}")
    browse(tmp_path / "profile", *options, report.as_uri())
    pixels = np.rint(imread(file)[..., :3] * 255)
    assert tuple(pixels[5, 5]) == background
    contrast = np.abs(pixels - background).max(-1) > 100
    # ink everywhere from the title down to the tables, and nothing in the margins
    bands = [band.mean() for band in np.array_split(contrast[40:2300], 20)]
    assert min(bands[1:16]) > 0.002
    assert contrast[:, :40].mean() == 0
    assert contrast[:, -40:].mean() == 0
