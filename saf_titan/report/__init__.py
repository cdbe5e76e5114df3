"""One self-contained HTML page about a run: `python -m saf_titan.analysis report RUN_FOLDER`, or `write.write_report`.

Nothing is imported here: the trainer imports `rows`, and must not load matplotlib for that.
"""
