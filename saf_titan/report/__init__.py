"""One self-contained HTML page about a run: `python -m saf_titan.report RUN_FOLDER`."""

from saf_titan.report.write import write_report

__all__ = ["write_report"]
