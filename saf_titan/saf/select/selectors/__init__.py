"""One selector per file; `registry.SELECTORS` collects them. No module here imports torch at import time."""
