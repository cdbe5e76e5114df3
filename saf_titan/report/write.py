"""Put a report together and write it as one HTML file."""

from collections.abc import Iterable
from pathlib import Path

from saf_titan.report import freeze_sections, markup, sections
from saf_titan.report.event import read_events
from saf_titan.report.relevance import relevance_sections
from saf_titan.report.run_log import read_run
from saf_titan.saf.container import replace_file

REPORT_FILE = "report.html"


def write_report(
    run_folder: str | Path, *, heads: int = 8, out: str | Path | None = None, more: Iterable[str] = ()
) -> Path:
    """Write the report of a run and return the path of the page.

    The run may be unfinished, and the last line of its metrics.jsonl half written. Figures are part of the page, which
    loads no other file. An older report is replaced only when the new one is complete.

    Args:
        run_folder: a run's dump_folder, with metrics.jsonl in it.
        heads: number of static heads of each freeze whose patterns are drawn.
        out: path of the page; `report.html` in the run's folder unless given.
        more: further sections, behind those of the run.

    Raises:
        ValueError: the folder holds no metrics.jsonl that can be read, or the page cannot be written.
    """
    folder = Path(run_folder)
    log = read_run(folder)
    events = read_events(log)
    body = [
        *sections.header(log, events),
        *sections.loss(log),
        *sections.accuracy(log),
        *relevance_sections(log),
        *sections.circuits(log),
    ]
    for event in events:
        body += freeze_sections.freeze(log, event, heads)
    body += [*freeze_sections.undone(log), *more, markup.footer()]
    path = Path(out) if out is not None else folder / REPORT_FILE
    write_whole(path, markup.page(f"{folder.resolve().name}: training report", body))
    return path


def write_whole(path: Path, text: str) -> None:
    """Write a file completely or not at all; raise ValueError, with the remedy, if it cannot be written."""
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise ValueError(
            f"{path}: the report cannot be written ({error.strerror}); mend that, or write it elsewhere with --out FILE"
        ) from error
