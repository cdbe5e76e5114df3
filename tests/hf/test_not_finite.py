"""No command takes what a model with a damaged weight computes for a result.

Covers ops/finite.py and hf/finite_logits.py, and the analysis of such a model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from saf_titan.analysis.__main__ import main as analysis
from saf_titan.generate.__main__ import main as generate
from saf_titan.hf.__main__ import main as hf
from tests.hf.test_commands import TEXT, made, write_model
from tests.hf.test_evaluation import CHOICES, choice_task, write_task

__all__ = ["made"]

MEASURE = "--text FOLDER/text.txt --sequences 2 --length 16"


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with one weight that is no number, a text, and tasks."""
    folder = tmp_path_factory.mktemp("damaged")
    file = write_model(folder / "model", num_key_value_heads=4) / "model.safetensors"
    weights = load_file(file)
    weights["model.layers.1.self_attn.o_proj.weight"][0, 0] = torch.nan
    save_file(weights, file, metadata={"format": "pt"})
    (folder / "text.txt").write_text(TEXT)
    choice_task(folder, CHOICES)
    settings = {"doc_to_text": "{{question}}", "doc_to_target": "", "output_type": "generate_until"}
    write_task(folder, "write", CHOICES, **settings, generation_kwargs={"max_gen_toks": 3})
    return folder


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (analysis, f"contributions FOLDER/model {MEASURE}"),
        (analysis, f"sinks FOLDER/model {MEASURE}"),
        (analysis, f"interventions FOLDER/model {MEASURE} --out FOLDER/out"),
        (analysis, f"report FOLDER/model {MEASURE} --out FOLDER/page.html"),
        (generate, "FOLDER/model --prompt the --max-new-tokens 3 --temperature 0"),
        (generate, "FOLDER/model --prompt the --max-new-tokens 3"),
        (hf, f"perplexity FOLDER/model {MEASURE}"),
        (hf, f"replacement FOLDER/model --stats MADE/stats {MEASURE} --out FOLDER/losses"),
        (hf, "evaluate FOLDER/model --tasks FOLDER/choose.yaml"),
        (hf, "evaluate FOLDER/model --tasks FOLDER/write.yaml"),
    ],
)
def test_every_command_stops(
    main: Callable[[list[str]], int], words: str, damaged: Path, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.replace("FOLDER", str(damaged)).replace("MADE", str(made)) for word in words.split()]) == 2
    error = capsys.readouterr().err.rpartition("error: ")[2]
    assert "is not finite: its weights hold NaN or infinity" in error
    assert not list(damaged.glob("out/*"))
    assert not (damaged / "page.html").exists()
