"""One selector a file; `registry.SELECTORS` collects them. No module here imports torch at import time."""
