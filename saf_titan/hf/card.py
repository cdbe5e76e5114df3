"""The README.md of a saved model: what stops plain transformers, and how the folder is loaded.

Transformers' own error names the ``model_type`` and advises an upgrade, which does not help. No entry of config.json
changes that error without asking for code from the folder, so the folder itself says what to do.
"""

from __future__ import annotations

from pathlib import Path

_CARD = """\
---
library_name: saf_titan
---

This model has {heads}. Plain transformers stops at its `model_type`, `{model_type}`, and no upgrade of
transformers changes that. Install saf_titan with its extra `hf`, then:

```python
import saf_titan.hf  # makes transformers know the class
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("{folder}")
```
"""


def write_card(folder: Path, *, model_type: str, num_static: int) -> None:
    """Write README.md into the folder of a model, unless it has one."""
    path = folder / "README.md"
    if path.exists():
        return
    heads = f"{num_static} attention heads with fixed patterns" if num_static else "a place for static attention heads"
    path.write_text(_CARD.format(heads=heads, model_type=model_type, folder=folder.name), encoding="utf-8")
