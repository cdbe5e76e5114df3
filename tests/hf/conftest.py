"""No network: transformers looks for files on this machine alone."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
