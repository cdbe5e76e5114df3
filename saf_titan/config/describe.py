"""The configuration as text: help for a terminal, and TOML that reads back to the same run."""

import dataclasses
import inspect
import textwrap
from typing import Any

from saf_titan.config.schema import RunConfig
from saf_titan.fields.convert import choices, describe, field_types, is_section, to_toml_value
from saf_titan.fields.docs import field_docs

_WIDTH = 100


def help_text() -> str:
    """Every key with its default, what it takes, and its documentation."""
    run = RunConfig()
    lines: list[str] = []
    for name, hint in field_types(RunConfig).items():
        if is_section(hint):
            section = getattr(run, name)
            docs = field_docs(hint)
            lines += ["", f"[{name}]  {inspect.getdoc(hint)}"]
            for key, key_hint in field_types(hint).items():
                lines += _entry(f"--{name}.{key}", key_hint, getattr(section, key), docs[key])
        else:
            lines += _entry(f"--{name}", hint, getattr(run, name), field_docs(RunConfig)[name])
    return "\n".join(lines) + "\n"


def _entry(option: str, hint: Any, default: Any, doc: str) -> list[str]:
    body = textwrap.wrap(doc, _WIDTH, initial_indent="        ", subsequent_indent="        ")
    for name, sentence in choices(hint).items():
        body += textwrap.wrap(f"{name}: {sentence}", _WIDTH, initial_indent=" " * 10, subsequent_indent=" " * 12)
    return [f"    {option} = {to_toml_value(default)}    ({describe(hint)})", *body]


def to_toml(config: RunConfig) -> str:
    """The run with every key written out; `load_config` reads it back to an equal `RunConfig`."""
    lines = [f"dump_folder = {to_toml_value(config.dump_folder)}"]
    for field in dataclasses.fields(config):
        section = getattr(config, field.name)
        if not dataclasses.is_dataclass(section):
            continue
        lines += ["", f"[{field.name}]"]
        for item in dataclasses.fields(section):
            # the step replaces the fraction, and a file may not give both
            if (field.name, item.name) == ("saf", "fraction" if config.saf.step else "step"):
                continue
            lines.append(f"{item.name} = {to_toml_value(getattr(section, item.name))}")
    return "\n".join(lines) + "\n"
