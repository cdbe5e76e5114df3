"""Make the picture of the README from a finished run: parts of its report, as a browser shows them.

    python scripts/report_picture.py outputs/debug_cpu --text FILE [--token 40] [--out docs/images/report.png]

The page is that of `python -m saf_titan.analysis report RUN --text FILE`. The picture shows its first sentences,
the map of all heads with the panel of one, and the passage with one token chosen. Needs chromium.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from saf_titan.fields.places import require_file_place

WIDTH, TALLEST, MARGIN = 1060, 4000, 24
"""Pixels: width of the picture, largest height, and white below the last line."""

KEEP = """
<script>
addEventListener("load", () => {
  const main = document.querySelector("main");
  const header = main.querySelector("header");
  header.querySelectorAll(".cards, dl").forEach(part => part.remove());
  const map = main.querySelector(".explorer");
  const freeze = [...main.querySelectorAll("h2")].find(title => title.textContent.startsWith("Freeze after"));
  freeze.textContent = `Heads at the f${freeze.textContent.slice(1)}`;
  const passage = main.querySelector(".passage");
  const about = passage.previousElementSibling;
  main.replaceChildren(header, freeze, map, about.previousElementSibling, about, passage);
  passage.querySelector('[data-token="TOKEN"]').click();
  document.activeElement.blur();
});
</script>
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run with one freeze")
    parser.add_argument("--text", type=Path, required=True, help="UTF-8 text whose beginning is the passage")
    parser.add_argument("--token", type=int, default=40, help="number of the chosen token, from 0")
    parser.add_argument("--out", type=Path, default=Path("docs/images/report.png"))
    args = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        parser.error("chromium is not installed")
    try:
        require_file_place(args.out)
    except ValueError as error:
        parser.error(f"--out: {error}")
    with tempfile.TemporaryDirectory() as temporary:
        page, shot = Path(temporary) / "page.html", Path(temporary) / "shot.png"
        words = ["report", str(args.run), "--text", str(args.text), "--sequences", "4", "--out", str(page)]
        if subprocess.run([sys.executable, "-m", "saf_titan.analysis", *words], check=False).returncode:
            parser.error("the report could not be made; the lines above say why")
        html = page.read_text(encoding="utf-8")
        if "<h2>Freeze after" not in html:
            parser.error(f"{args.run} has no freeze, whose heads the picture shows")
        last = max(map(int, re.findall(r'data-token="(\d+)"', html)))
        if not 0 <= args.token <= last:
            parser.error(f"--token {args.token}: the passage has the tokens 0 to {last}")
        page.write_text(html.replace("</body>", f"{KEEP.replace('TOKEN', str(args.token))}</body>"), encoding="utf-8")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={temporary}/p"]
        options += ["--blink-settings=preferredColorScheme=1", f"--window-size={WIDTH},{TALLEST}"]
        subprocess.run([browser, *options, f"--screenshot={shot}", page.as_uri()], check=True, capture_output=True)
        image = Image.open(shot).convert("RGB")
        is_blank_Y = (np.asarray(image) == np.asarray(image)[0, 0]).all((1, 2))
        bottom = int(np.flatnonzero(~is_blank_Y)[-1]) + 1 + MARGIN
        image.crop((0, 0, WIDTH, bottom)).quantize(256).save(args.out, optimize=True)
        print(f"wrote {args.out}: {WIDTH} x {bottom} pixels, {args.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
