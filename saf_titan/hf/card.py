"""The README.md of a saved model, which says how to load it and why transformers alone cannot.

The error of transformers names the ``model_type`` and advises an upgrade, which does not help. An entry of config.json
could change that error only by asking for code in the folder, so a file in the folder says what to do.
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
    """Write README.md into the folder of a model, unless the folder has such a file.

    num_static: number of static heads of the model.
    """
    path = folder / "README.md"
    if path.exists():
        return
    heads = f"{num_static} attention heads with fixed patterns" if num_static else "a place for static attention heads"
    path.write_text(_CARD.format(heads=heads, model_type=model_type, folder=folder.name), encoding="utf-8")
