"""A real browser shows the report as it is meant: on a light and a dark screen, on a desktop and on a phone.

Covers `figures`, `markup`, `explorer`, `report.css` and `report.js`.
"""

import json
import math
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from saf_titan.report import markup
from saf_titan.report.compare import write_comparison
from saf_titan.report.explorer import head_explorer
from saf_titan.report.heads import HeadMaps, Metric
from saf_titan.report.passage import Weights, passage
from saf_titan.report.rows import METRICS_FILE
from saf_titan.report.write import write_report
from tests.report.runs import plain_rows, relevance_row, undone_row, write_frozen_run, write_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian: apt-get install chromium)")


ODD_NAMES = ("日本語", "_a$b$<i>", "long_" * 40)


def browse(profile: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
    return subprocess.run([CHROMIUM, *options, *arguments], capture_output=True, text=True, timeout=120, check=True)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run with everything that is wide: a long name, a damaged line, undone freezes, relevant tokens."""
    folder = write_frozen_run(tmp_path_factory.mktemp("runs") / "a_name_without_any_space_in_it_that_is_rather_long")
    with (folder / METRICS_FILE).open("a") as log:
        log.write(json.dumps(undone_row(90, 5)) + "\n")
        for step, phase in ((1, "scheduled"), (60, "before_freeze"), (60, "after_freeze"), (120, "final")):
            log.write(json.dumps(relevance_row(step, phase)) + "\n")
        log.write(json.dumps({"kind": "train", "step": "x" * 200}) + "\n")
    return write_report(folder)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an ordinary and a frozen run, with the clock that the trainer writes."""
    folder = tmp_path_factory.mktemp("runs")
    # of characters that a font of figures lacks, of marks of its formulas, and longer than a screen
    odd = [write_frozen_run(folder / name) for name in ODD_NAMES]
    rows = [row | {"seconds": 0.5 * row["step"]} if row["kind"] == "train" else row for row in plain_rows()]
    ordinary = write_run(folder / "a_name_without_any_space_in_it_that_is_rather_long", rows)
    return write_comparison([ordinary, write_frozen_run(folder / "frozen"), *odd], folder / "comparison.html")


def test_the_browser_keeps_every_element(report: Path, tmp_path: Path) -> None:
    dom = browse(tmp_path, "--dump-dom", report.as_uri()).stdout
    source = report.read_text()
    for tag in ("<tr", "<image", "<use", 'class="card"', "</footer>"):
        assert dom.count(tag) == source.count(tag), tag
    # the panel of the first head comes on top
    for tag in ("<svg", "<figure"):
        assert dom.count(tag) > source.count(tag) > 2, tag


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


def check_speech(speech: dict[str, Any]) -> None:
    """A screen reader finds a name for every part, and its way by headings."""
    assert speech["nameless"] == []
    assert (speech["pictures"], speech["columns"], speech["main"]) == (0, 0, 1)
    levels = speech["levels"]
    assert levels[0] == 1
    assert all(lower <= upper + 1 for upper, lower in pairwise(levels)), "no level is left out on the way down"


PHONE_WIDTH = 360
FRAME = """
<iframe style="border: 0; width: WIDTHpx; height: 2000px"></iframe>
<script>
const frame = document.querySelector("iframe");
frame.onload = () => {
  const page = frame.contentDocument, root = page.documentElement;
  const measured = (() => { SCRIPT })();
  document.body.dataset.measured = encodeURIComponent(JSON.stringify(measured));
};
frame.srcdoc = decodeURIComponent("SOURCE");
</script>
"""
MEASURE = """
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
  page.querySelectorAll("details").forEach(box => box.open = true);
  const outside = [...page.querySelectorAll("p, li, details, figure, svg, .card, .scroll, dl, h1, h2, h3, .small")]
    .filter(element => !inside(element.getBoundingClientRect())).map(element => element.outerHTML.slice(0, 80));
  const scrolls = [...page.querySelectorAll(".scroll")].map(box => frame.contentWindow.getComputedStyle(box).overflowX);
  const columns = page.querySelector(".row").children[0].getBoundingClientRect().top
    == page.querySelector(".row").children[1].getBoundingClientRect().top ? 2 : 1;
  const named = e => e.ariaLabel || e.textContent.trim() || e.closest("label")?.textContent.trim();
  const all = selector => [...page.querySelectorAll(selector)].filter(e => !e.closest("[aria-hidden]"));
  const speech = {
    nameless: all("svg, canvas, button, select, [tabindex='0'], summary").filter(e => !named(e))
      .map(e => e.outerHTML.slice(0, 80)),
    pictures: all("svg, canvas").filter(e => e.getAttribute("role") !== "img").length,
    columns: all("thead th").filter(e => e.scope !== "col").length,
    levels: all("h1, h2, h3, h4").map(e => Number(e.tagName[1])),
    main: all("main").length,
  };
  const legends = all("figure ul").map(list => [...list.children].map(e => e.textContent));
  return {speech, legends, width: root.clientWidth, scroll: root.scrollWidth, sizes, labels, outside, scrolls, columns};
"""


def act(report: Path, folder: Path, script: str, width: int = 1100) -> dict[str, Any]:
    """What `script` returns, run over the page on a screen of `width` pixels.

    Chromium's own window cannot be as narrow as a phone, a frame can.
    """
    source = quote(report.read_text(), safe="")
    wrapper = folder / "wrapper.html"
    wrapper.write_text(FRAME.replace("WIDTH", str(width)).replace("SCRIPT", script).replace("SOURCE", source))
    run = browse(
        folder / "profile", "--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom", wrapper.as_uri()
    )
    assert "CONSOLE" not in run.stderr, run.stderr
    (found,) = re.findall(r'data-measured="(.*?)"', run.stdout)
    return json.loads(unquote(found))


@pytest.mark.parametrize(("width", "columns"), [(PHONE_WIDTH, 1), (1100, 2)])
def test_the_page_fits_the_screen_and_can_be_read(report: Path, tmp_path: Path, width: int, columns: int) -> None:
    page = act(report, tmp_path, MEASURE, width)
    assert page["width"] == width
    assert page["scroll"] == width, "the page itself must not scroll sideways"
    assert page["outside"] == []
    assert page["scrolls"], "wide tables scroll in their box"
    assert set(page["scrolls"]) == {"auto"}
    assert page["columns"] == columns
    check_speech(page["speech"])
    assert min(page["sizes"]) >= 12
    # letters of 7 pixels are a font of 10
    assert len(page["labels"]) > 30
    assert min(page["labels"]) >= 7


def test_a_click_on_a_head_shows_its_attention(report: Path, tmp_path: Path) -> None:
    page = act(
        report,
        tmp_path,
        """
        const panel = page.querySelector(".panel"), before = panel.querySelector("h4").textContent;
        const static_ = [...page.querySelectorAll("[data-head]")].filter(c => c.dataset.mark.includes("made static"));
        const cell = static_.find(c => c.dataset.head !== before);
        cell.click();
        const canvas = [...panel.querySelectorAll("canvas")];
        const colours = canvas.map(c => new Set(c.getContext("2d").getImageData(0, 0, c.width, c.height).data).size);
        const all = static_.map(c => c.dataset.head);
        return {before, all, name: cell.dataset.head, text: panel.textContent, colours, label: canvas[0].ariaLabel,
          lines: panel.querySelectorAll("path.line").length, current: cell.ariaCurrent,
          broken: [...panel.querySelectorAll("path.line")].some(line => line.getAttribute("d").includes("NaN"))};
        """,
    )
    # one of those that became static is shown from the start
    assert page["before"] in page["all"]
    assert page["before"] != page["name"]
    assert page["text"].startswith(page["name"])
    assert "static since" in page["text"]
    assert min(page["colours"]) > 10
    assert len(page["colours"]) == 2
    assert page["lines"] == 4
    assert not page["broken"]
    assert "queries from top to bottom" in page["label"]
    assert page["current"] == "true"


def test_another_metric_colours_the_map_anew(report: Path, tmp_path: Path) -> None:
    page = act(
        report,
        tmp_path,
        """
        const choice = page.querySelector(".explorer select"), cell = page.querySelector("[data-head=L0H1]");
        const state = () => [cell.style.background, cell.ariaLabel, page.querySelector(".meaning").textContent];
        const before = state();
        choice.value = [...choice.options].findIndex(option => option.text === "entropy");
        choice.dispatchEvent(new Event("change"));
        return {before, after: state()};
        """,
    )
    assert page["before"][1].startswith("L0H1: variance ")
    assert page["after"][1].startswith("L0H1: entropy ")
    assert page["after"][2].startswith("Entropy of a row")
    assert page["before"][0] != page["after"][0]


def test_the_keyboard_walks_over_the_map(report: Path, tmp_path: Path) -> None:
    page = act(
        report,
        tmp_path,
        """
        const press = key => page.activeElement.dispatchEvent(
          new frame.contentWindow.KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
        frame.focus();
        page.querySelector("[data-head=L0H0]").focus();
        const walk = [];
        for (const key of ["ArrowRight", "ArrowDown", "ArrowLeft", "ArrowLeft", "ArrowDown", "End", "ArrowRight",
                           "ArrowUp", "Home"]) {
          press(key);
          walk.push(page.activeElement.dataset.head);
        }
        return {walk, reading: page.querySelector(".reading").textContent,
          stops: page.querySelectorAll('[data-head][tabindex="0"]').length};
        """,
    )
    assert page["walk"] == ["L0H1", "L1H1", "L1H0", "L1H0", "L1H0", "L1H3", "L1H3", "L0H3", "L0H0"]
    assert page["reading"].startswith("L0H0: variance ")
    assert page["stops"] == 1, "the tab key stops at one head of the map"


def test_tables_are_sorted_by_their_columns(report: Path, tmp_path: Path) -> None:
    page = act(
        report,
        tmp_path,
        """
        const table = [...page.querySelectorAll(".scroll table")].find(t => t.textContent.includes("score"));
        const column = () => [...table.tBodies[0].rows].map(row => row.cells[3].textContent);
        const name = table.tHead.rows[0].cells[3];
        const states = [column()];
        for (const click of [1, 2]) {
          name.querySelector("button").click();
          states.push([name.ariaSort, ...column()]);
        }
        return {states, name: name.textContent};
        """,
    )
    unsorted, rising, falling = page["states"]
    assert page["name"] == "score"
    assert rising == ["ascending", *sorted(unsorted, key=float)]
    assert falling == ["descending", *sorted(unsorted, key=float, reverse=True)]


def test_a_passage_is_coloured_for_the_chosen_token(tmp_path: Path) -> None:
    first_TT = torch.tensor([[1.0, 0, 0], [0.25, 0.75, 0], [0.5, -0.25, 0.75]])
    second_TT = torch.eye(3)
    entries = [
        Weights(name=name, by_measure=(("attention", a_TT), ("contribution", b_TT)))
        for name, a_TT, b_TT in (("layer 0", second_TT, first_TT), ("L0H0", first_TT, second_TT))
    ]
    file = tmp_path / "page.html"
    file.write_text(markup.page("passage", [passage(["one", " two", " three"], entries, "the text")]))
    page = act(
        file,
        tmp_path,
        r"""
        const drawn = word => {
          const {backgroundColor, backgroundImage} = frame.contentWindow.getComputedStyle(word);
          return [backgroundColor, ...backgroundImage.match(/rgba?\([^)]*\)/g)];
        };
        const words = measure => [...page.querySelector(`[data-measure=${measure}]`).children];
        const colors = () => ["attention", "contribution"].map(m => words(m).map(drawn));
        const states = [colors()];
        words("attention")[1].click();
        states.push(colors());
        const reading = page.querySelector(".reading").textContent;
        const choice = page.querySelector(".passage select");
        choice.value = 1;
        choice.dispatchEvent(new Event("change"));
        states.push(colors());
        return {states, reading, later: words("attention").map(word => word.classList.contains("later")),
          current: words("contribution").map(word => word.ariaCurrent)};
        """,
    )
    start, second, head = page["states"]
    # the opacity is 0.65 times the root of the share
    np.testing.assert_allclose([opacities(word) for word in start[1]], [(0.46, 0), (0, 0.325), (0.563, 0)], atol=0.01)
    np.testing.assert_allclose([opacities(word) for word in second[1]], [(0.325, 0), (0.563, 0), (0, 0)], atol=0.01)
    assert head[0] == second[1]
    assert page["reading"] == '" two" gives to " two": attention 100.0 %, contribution 75.0 %'
    assert page["later"] == [False, False, True]
    assert page["current"] == [None, "true", None]


def opacities(colours: list[str]) -> tuple[float, float]:
    """Of blue and of orange, in the computed style of a word."""
    blue, orange = ([float(x) for x in re.findall(r"[\d.]+", colour)] for colour in colours[:2])
    assert (blue[:3], orange[:3]) == ([59, 125, 192], [217, 130, 43])
    return tuple(colour[3] if len(colour) > 3 else 1.0 for colour in (blue, orange))  # type: ignore[return-value]


@pytest.mark.parametrize("width", [PHONE_WIDTH, 1100])
def test_the_comparison_fits_the_screen_and_can_be_read(comparison: Path, tmp_path: Path, width: int) -> None:
    page = act(comparison, tmp_path, MEASURE, width)
    assert page["scroll"] == width, "the page itself must not scroll sideways"
    assert page["outside"] == []
    assert set(page["scrolls"]) == {"auto"}
    assert min(page["sizes"]) >= 12
    assert len(page["labels"]) > 30
    assert min(page["labels"]) >= 7
    check_speech(page["speech"])
    assert page["legends"][0][1:] == ["frozen", *ODD_NAMES]


def test_a_metric_that_all_heads_share_has_no_scale(tmp_path: Path) -> None:
    maps = HeadMaps(
        metrics=tuple(
            Metric(name=name, meaning="a number", values_LH=torch.tensor(values))
            for name, values in (("same", [[2.0, 2.0]]), ("two", [[1.0, -3.0]]), ("none", [[math.nan, math.nan]]))
        )
    )
    file = tmp_path / "page.html"
    file.write_text(markup.page("heads", [head_explorer(maps, "heads")]))
    page = act(
        file,
        tmp_path,
        """
        const choice = page.querySelector("select"), scale = page.querySelector(".scale");
        return [0, 1, 2].map(i => {
          choice.value = i;
          choice.dispatchEvent(new Event("change"));
          return [...scale.children].filter(e => e.checkVisibility()).map(e => e.textContent);
        });
        """,
    )
    assert page == [["2 for every head", ""], ["-3", "", "1"], ["unknown for every head", ""]]
