"""Small pieces of HTML. Every text that comes from a run is escaped here."""

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

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
{body}
</body>
</html>
"""


def page(title: str, body: Iterable[str]) -> str:
    """A whole document that needs nothing else."""
    style = files(__package__).joinpath("report.css").read_text(encoding="utf-8")
    return _PAGE.format(title=escape(title), style=style, body="\n".join(body))


def heading(text: str, level: int = 2) -> str:
    return f"<h{level}>{escape(text)}</h{level}>"


def paragraph(text: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f"<p{attribute}>{escape(text)}</p>"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of names and values."""
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs)
    return f"<dl>{items}</dl>"


def cards(pairs: Sequence[tuple[str, str]]) -> str:
    """Numbers set large, each with what it is."""
    items = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for name, value in pairs
    )
    return f'<div class="cards">{items}</div>' if pairs else ""


def picture(svg: str, caption: str) -> str:
    """An inline picture; the caption also names it for screen readers."""
    width = svg.partition('width="')[2].partition('"')[0]
    labelled = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(caption)}" ', 1)
    return f'<figure style="--width: {escape(width)}">{labelled}<figcaption>{escape(caption)}</figcaption></figure>'


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: Sequence[str] = ()) -> str:
    """A table whose numbers are right-aligned and whose `text_columns` are left-aligned."""
    kinds = [' class="text"' if column in text_columns else "" for column in columns]
    head = "".join(f"<th{kind}>{escape(column)}</th>" for column, kind in zip(columns, kinds, strict=True))
    body = "\n".join(
        "<tr>" + "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
