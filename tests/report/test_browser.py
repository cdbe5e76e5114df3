"""A real browser shows the report as it is meant: on a light and a dark screen, on a desktop and on a phone.

Covers `figures`, `markup` and `report.css`.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import pytest
from matplotlib.image import imread

from saf_titan.report.compare import write_comparison
from saf_titan.report.rows import METRICS_FILE
from saf_titan.report.write import write_report
from tests.report.runs import plain_rows, undone_row, write_frozen_run, write_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian: apt-get install chromium)")


def browse(profile: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
    return subprocess.run([CHROMIUM, *options, *arguments], capture_output=True, text=True, timeout=120, check=True)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run with everything that is wide: a long name, a long line that is damaged, undone freezes."""
    folder = write_frozen_run(tmp_path_factory.mktemp("runs") / "a_name_without_any_space_in_it_that_is_rather_long")
    with (folder / METRICS_FILE).open("a") as log:
        log.write(json.dumps(undone_row(90, 5)) + "\n")
        log.write(json.dumps({"kind": "train", "step": "x" * 200}) + "\n")
    return write_report(folder)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an ordinary and a frozen run, with the clock that the trainer writes."""
    folder = tmp_path_factory.mktemp("runs")
    rows = [row | {"seconds": 0.5 * row["step"]} if row["kind"] == "train" else row for row in plain_rows()]
    ordinary = write_run(folder / "a_name_without_any_space_in_it_that_is_rather_long", rows)
    return write_comparison([ordinary, write_frozen_run(folder / "frozen")], folder / "comparison.html")


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


PHONE_WIDTH = 390
MEASURE = """
<iframe style="border: 0; width: WIDTHpx; height: 2000px"></iframe>
<script>
const frame = document.querySelector("iframe");
frame.onload = () => {
  const page = frame.contentDocument, root = page.documentElement;
  const sizes = [...page.querySelectorAll("body *")]
    .filter(element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim()))
    .filter(element => !element.closest("svg"))
    .map(element => parseFloat(frame.contentWindow.getComputedStyle(element).fontSize));
  // A label is drawn as outlines, with its text as a comment. The letters' height is the label's short side, also
  // where it is rotated, but the long side of a single digit.
  const labels = [...page.querySelectorAll('svg g[id^="text_"]')].map(label => {
    const box = label.getBoundingClientRect();
    const text = [...label.childNodes].find(node => node.nodeType === 8).data.trim();
    return text.length === 1 ? Math.max(box.width, box.height) : Math.min(box.width, box.height);
  });
  const inside = box => box.left >= 0 && box.right <= root.clientWidth + 0.5;
  const outside = [...page.querySelectorAll("p, figure, svg, .card, .scroll, dl, h1, h2, h3, .small")]
    .filter(element => !inside(element.getBoundingClientRect())).map(element => element.outerHTML.slice(0, 80));
  const scrolls = [...page.querySelectorAll(".scroll")].map(box => frame.contentWindow.getComputedStyle(box).overflowX);
  const columns = page.querySelector(".row").children[0].getBoundingClientRect().top
    == page.querySelector(".row").children[1].getBoundingClientRect().top ? 2 : 1;
  const measured = {width: root.clientWidth, scroll: root.scrollWidth, sizes, labels, outside, scrolls, columns};
  document.body.dataset.measured = encodeURIComponent(JSON.stringify(measured));
};
frame.srcdoc = decodeURIComponent("SOURCE");
</script>
"""


def measure(report: Path, folder: Path, width: int) -> dict[str, Any]:
    """What a screen of `width` pixels shows; chromium's own window cannot be as narrow as a phone, a frame can."""
    source = quote(report.read_text(), safe="")
    wrapper = folder / "wrapper.html"
    wrapper.write_text(MEASURE.replace("WIDTH", str(width)).replace("SOURCE", source))
    dom = browse(folder / "profile", "--virtual-time-budget=5000", "--dump-dom", wrapper.as_uri()).stdout
    (found,) = re.findall(r'data-measured="(.*?)"', dom)
    return json.loads(unquote(found))


@pytest.mark.parametrize(("width", "columns"), [(PHONE_WIDTH, 1), (1100, 2)])
def test_the_page_fits_the_screen_and_can_be_read(report: Path, tmp_path: Path, width: int, columns: int) -> None:
    page = measure(report, tmp_path, width)
    assert page["width"] == width
    assert page["scroll"] == width, "the page itself must not scroll sideways"
    assert page["outside"] == []
    assert page["scrolls"], "wide tables scroll in their box"
    assert set(page["scrolls"]) == {"auto"}
    assert page["columns"] == columns
    assert min(page["sizes"]) >= 12
    # letters of 7 pixels are a font of 10
    assert len(page["labels"]) > 30
    assert min(page["labels"]) >= 7


@pytest.mark.parametrize("width", [PHONE_WIDTH, 1100])
def test_the_comparison_fits_the_screen_and_can_be_read(comparison: Path, tmp_path: Path, width: int) -> None:
    page = measure(comparison, tmp_path, width)
    assert page["scroll"] == width, "the page itself must not scroll sideways"
    assert page["outside"] == []
    assert set(page["scrolls"]) == {"auto"}
    assert min(page["sizes"]) >= 12
    assert len(page["labels"]) > 30
    assert min(page["labels"]) >= 7
