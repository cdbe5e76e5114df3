"""One pattern content per file; `registry.CONTENTS` collects them. No module here imports torch at import time."""
