"""Put a report together and write it into the run's folder."""

from pathlib import Path

from saf_titan import __version__
from saf_titan.report import markup, sections
from saf_titan.report.event import read_events
from saf_titan.report.run_log import read_run


def write_report(run_folder: str | Path, *, heads: int = 8) -> Path:
    """Write `report.html` into a run's folder and return its path.

    The run may be unfinished, and its last line half written. Pictures are part of the page; it loads nothing.

    Args:
        run_folder: a run's dump_folder, with metrics.jsonl in it.
        heads: static heads of each freeze whose patterns are drawn.

    Raises:
        ValueError: the folder holds no metrics.jsonl.
    """
    folder = Path(run_folder)
    log = read_run(folder)
    events = read_events(log)
    body = [*sections.header(log, events), *sections.loss(log)]
    for event in events:
        body += sections.freeze(log, event, heads)
    body.append(f"<footer>Written by saf_titan {__version__}.</footer>")
    path = folder / "report.html"
    # all or nothing: an older report survives a full disk
    unfinished = path.with_suffix(".html.part")
    unfinished.write_text(markup.page(f"{folder.resolve().name}: training report", body), encoding="utf-8")
    unfinished.replace(path)
    return path
