"""One self-contained HTML page about a run: `python -m saf_titan.analysis.report RUN_FOLDER`."""

from saf_titan.analysis.report.write import write_report

__all__ = ["write_report"]
