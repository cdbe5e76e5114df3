"""Small pieces of HTML. All text is escaped here, because paths and names of a run may hold any character."""

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from saf_titan import __version__

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
<script>
{script}</script>
</body>
</html>
"""


_DASHES = {"-": "none", "--": "7 3", ":": "2 3", "-.": "7 3 2 3"}


def page(title: str, body: Iterable[str]) -> str:
    """Return a whole HTML document, which loads no other file."""
    style, script = (
        files(__package__).joinpath(f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "js")
    )
    return _PAGE.format(title=escape(title), style=style, script=script, body="\n".join(body))


def footer() -> str:
    return f"<footer>Written by saf_titan {__version__}.</footer>"


def heading(text: str, level: int = 2) -> str:
    return f"<h{level}>{escape(text)}</h{level}>"


def paragraph(text: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f"<p{attribute}>{escape(text)}</p>"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Return a list of names and values."""
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs)
    return f"<dl>{items}</dl>"


def cards(pairs: Sequence[tuple[str, str]]) -> str:
    """Return cards for pairs of (name, number): the numbers in large type, each above its name."""
    items = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for name, value in pairs
    )
    return f'<div class="cards">{items}</div>' if pairs else ""


def figure(svg: str, caption: str, *, numbers: str = "", legend: Sequence[tuple[str, str, str]] = ()) -> str:
    """Return an inline figure; its caption also names it for screen readers.

    Args:
        numbers: a table of what the figure shows, which opens below it on request.
        legend: (name, colour, line style of matplotlib) of each line, for names of any length and any characters, such
            as those of runs. Legends of other names are drawn inside the figure.
    """
    width = svg.partition('width="')[2].partition('"')[0]
    keys = "".join(
        f'<li><svg width="26" height="8" aria-hidden="true"><path d="M0 4H26" stroke="{escape(colour)}" '
        f'stroke-width="2" stroke-dasharray="{_DASHES[line]}"/></svg><span>{escape(name)}</span></li>'
        for name, colour, line in legend
    )
    caption_html = (f"<ul>{keys}</ul>" if keys else "") + escape(caption)
    table = f"<details><summary>The numbers as a table</summary>{numbers}</details>" if numbers else ""
    return (
        f'<figure style="--width: {escape(width)}">{_labelled(svg, caption)}<figcaption>{caption_html}</figcaption>'
        f"{table}</figure>"
    )


def side_by_side(figures: Iterable[str]) -> str:
    """Place figures in a row on a wide screen, one below the other on a phone."""
    return f'<div class="row">{"".join(figures)}</div>'


def gallery(groups: Iterable[tuple[str, Sequence[tuple[str, str]]]]) -> str:
    """Place groups of (title, pictures) side by side, and the pictures (svg, caption) of a group below each other."""
    cells = []
    for title, pictures in groups:
        parts = (f"{_labelled(svg, f'{title}: {name}')}<span>{escape(name)}</span>" for svg, name in pictures)
        cells.append(f'<div class="small"><b>{escape(title)}</b>{"".join(parts)}</div>')
    return f'<div class="gallery">{"".join(cells)}</div>'


def _labelled(svg: str, label: str) -> str:
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: Sequence[str] = ()) -> str:
    """Return a table whose numbers are right-aligned and whose `text_columns` are left-aligned.

    A wide table scrolls, and the names of its columns become buttons that sort it.
    """
    kinds = [' class="text"' if column in text_columns else "" for column in columns]
    head = "".join(f'<th scope="col"{kind}>{escape(column)}</th>' for column, kind in zip(columns, kinds, strict=True))
    body = "\n".join(
        "<tr>" + "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    # a box that scrolls can have the focus, so that the keyboard can scroll it too; screen readers then read its name
    label = escape(f"table of {', '.join(column for column in columns if column)}")
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{label}"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def json_script(data: Any) -> str:
    """Return an element with data for the script of the page; no text in the data can close the element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json">{text}</script>'
