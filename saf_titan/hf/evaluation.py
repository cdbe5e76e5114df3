"""Run the evaluation harness (PyPI `lm-eval`) on a model of transformers, in this process.

The harness makes the prompts, scores the answers and computes the metrics. This file gives it the model. No text is
longer than the patterns of the static heads, and texts that have to be cut are counted.
"""

from __future__ import annotations

import difflib
import logging
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

try:
    from lm_eval.evaluator import evaluate as run_harness
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.utils import normalize_gen_kwargs
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import make_table
except ImportError as error:
    raise ImportError("evaluation needs the harness: pip install 'saf_titan[eval]'") from error

from saf_titan.fields.places import read_utf8
from saf_titan.hf.finite_logits import finite_logits
from saf_titan.hf.text import longest_text
from saf_titan.ops.finite import require_finite

_FEWSHOT_SEED = 1234
"""The default of the harness."""


class HarnessModel(HFLM):
    """A model that `saf_titan.hf.load` has loaded, with the interface of the harness.

    The longest text is limited by the positions of the model and by the length that its static heads are fitted to. As
    usual in the harness, a longer prompt loses its beginning; ``num_cut`` is the number of such prompts.
    """

    def __init__(self, model: Any, tokenizer: Any, *, batch_size: int = 8) -> None:
        """
        Args:
            model: the model.
            tokenizer: the model's tokenizer. It needs a begin or end token, which stands before a text without a
                prompt.
            batch_size: number of texts at a time.
        """
        if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None:
            raise ValueError(f"the tokenizer of {model.name_or_path} names neither a begin nor an end token")
        with _quiet():
            super().__init__(model, tokenizer=tokenizer, max_length=longest_text(model), batch_size=batch_size)
        self.num_cut = 0

    def get_model_info(self) -> dict[str, Any]:
        """Return what the results record about the model, without the request to the network that the harness makes."""
        plan = self.model.plan
        return {
            "model": self.model.name_or_path,
            "model_num_parameters": self.model.num_parameters(),
            "model_dtype": str(self.model.dtype),
            "static_heads": [] if plan is None else [head.name for head in plan.heads],
            "saf_plan": None if plan is None else plan.digest,
            "max_length": self.max_length,
        }

    def _model_call(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As in the harness. Raises ValueError for logits that are not finite: it would take them for wrong answers."""
        logits: torch.Tensor = super()._model_call(*args, **kwargs)
        require_finite(logits, f"the output of {self.model.name_or_path}")
        return logits

    def _model_generate(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As in the harness, with the same check."""
        found: torch.Tensor = super()._model_generate(*args, **kwargs, logits_processor=finite_logits())
        return found

    def _loglikelihood_tokens(self, requests: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        """As in the harness. Raises ValueError for an answer that is longer than the longest text."""
        for _, context, answer in requests:
            if len(answer) > self.max_length:
                raise ValueError(
                    f"an answer of the task has {len(answer)} tokens, and the longest text of this model "
                    f"{self.max_length}"
                )
            # the model predicts the last token of the answer but does not read it
            self.num_cut += len(context) + len(answer) > self.max_length + 1
        with _quiet():
            return super()._loglikelihood_tokens(requests, *args, **kwargs)

    def generate_until(self, requests: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        """As in the harness. Raises ValueError if a task asks for more tokens than the longest text has."""
        for prompt, settings in (request.args for request in requests):
            asked = normalize_gen_kwargs(settings, self.max_gen_toks)["max_gen_toks"]
            if asked >= self.max_length:
                raise ValueError(
                    f"the task asks for up to {asked} new tokens, and the longest text of this model has "
                    f"{self.max_length}: lower max_gen_toks in the task's generation_kwargs"
                )
            self.num_cut += len(self.tok_encode(prompt)) > self.max_length - asked
        with _quiet():
            return super().generate_until(requests, *args, **kwargs)


@dataclass(frozen=True)
class Evaluation:
    """The results of the harness."""

    results: dict[str, Any]
    """The results as the harness returns them, and ``config`` with the model and settings; can be written as JSON."""
    num_cut: int
    """Prompts that lost their beginning because they were longer than the longest text of the model."""

    @property
    def table(self) -> str:
        """Return the harness's table of tasks and metrics, in Markdown."""
        tables = [make_table(self.results)]
        if self.results.get("groups"):
            tables.append(make_table(self.results, "groups"))
        return "\n".join(table.strip() for table in tables)


def evaluate(
    model: Any,
    tokenizer: Any,
    tasks: Sequence[str],
    *,
    batch_size: int = 8,
    limit: int | None = None,
    num_fewshot: int | None = None,
) -> Evaluation:
    """Run tasks of the evaluation harness on a model that `saf_titan.hf.load` has loaded.

    Args:
        tokenizer: the model's tokenizer.
        tasks: names of tasks that the harness knows, or YAML files that define a task. The data of a named task come
            from the network, unless `datasets` has stored them already. The data of a YAML file may be local.
        batch_size: number of texts at a time.
        limit: number of examples of each task, from its first one; None for all.
        num_fewshot: number of solved examples in each prompt; None for the number that the task sets.

    Raises ValueError for tasks that are unknown or cannot be loaded, and for texts that cannot fit into the model.
    """
    subject = HarnessModel(model, tokenizer, batch_size=batch_size)
    loaded = _load_tasks(tasks)
    for name, task in loaded["tasks"].items():
        fixed = task.get_config("num_fewshot")
        if fixed == 0 and num_fewshot:
            raise ValueError(f"the task {name} is defined without examples in its prompts (num_fewshot: 0)")
        if num_fewshot is not None or fixed is None:
            task.set_config(key="num_fewshot", value=num_fewshot or 0)
        task.set_fewshot_seed(seed=_FEWSHOT_SEED)
    # the same seeds as the harness's command line
    random.seed(0)
    np.random.seed(1234)
    torch.manual_seed(1234)
    results: dict[str, Any] = run_harness(subject, loaded, limit=limit, log_samples=False)
    settings = {"limit": limit, "num_fewshot": num_fewshot, "batch_size": batch_size, "num_cut": subject.num_cut}
    results["config"] = subject.get_model_info() | settings
    return Evaluation(results, subject.num_cut)


def _load_tasks(tasks: Sequence[str]) -> dict[str, Any]:
    """Return the tasks of the harness, each with its data."""
    for name in tasks:
        if Path(name).suffix in (".yaml", ".yml") and not Path(name).is_file():
            raise ValueError(f"{name} does not exist: give a YAML file, or the name of a task")
    # thousands of files define the harness's own tasks: read them only if a name or a group may need them
    manager = TaskManager(include_defaults=not all(_is_single_task(Path(name)) for name in tasks))
    for name in tasks:
        if not Path(name).is_file() and name not in manager.all_tasks:
            near = difflib.get_close_matches(name, manager.all_tasks, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"the harness knows no task {name!r}{hint}")
    try:
        with _quiet():
            loaded: dict[str, Any] = manager.load(list(tasks))
    except OSError:
        # the message names the file or the data set
        raise
    except Exception as error:
        # a task is a program of its author, which may raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ValueError(f"{', '.join(tasks)}: the task cannot be loaded: {reason}") from error
    return loaded


def _is_single_task(path: Path) -> bool:
    """Return whether a path is a YAML file of one task, not of a group of tasks."""
    return path.is_file() and re.search(r"^group:", read_utf8(path), re.MULTILINE) is None


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the harness's warnings: that it did not load the model itself, and one for each text that it cuts."""
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
