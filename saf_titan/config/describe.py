"""The configuration as text: help for a terminal, and TOML that reads back to the same run."""

import ast
import dataclasses
import inspect
import textwrap
from functools import cache
from types import ModuleType
from typing import Any

from saf_titan.config import host_sections, own_sections, schema
from saf_titan.config.schema import RunConfig
from saf_titan.fields.convert import describe, field_types, is_section, to_toml_value

_WIDTH = 100


def help_text() -> str:
    """Every key with its default, what it takes, and its documentation."""
    run = RunConfig()
    lines: list[str] = []
    for name, hint in field_types(RunConfig).items():
        if is_section(hint):
            section = getattr(run, name)
            docs = _field_docs()[hint.__name__]
            lines += ["", f"[{name}]  {inspect.getdoc(hint)}"]
            for key, key_hint in field_types(hint).items():
                lines += _entry(f"--{name}.{key}", key_hint, getattr(section, key), docs[key])
        else:
            lines += _entry(f"--{name}", hint, getattr(run, name), _field_docs()["RunConfig"][name])
    return "\n".join(lines) + "\n"


def _entry(option: str, hint: Any, default: Any, doc: str) -> list[str]:
    body = textwrap.wrap(doc, _WIDTH, initial_indent="        ", subsequent_indent="        ")
    return [f"    {option} = {to_toml_value(default)}    ({describe(hint)})", *body]


@cache
def _field_docs() -> dict[str, dict[str, str]]:
    """Class name -> field -> the string that stands under it in the source; Python keeps none at run time."""
    modules: tuple[ModuleType, ...] = (schema, host_sections, own_sections)
    trees = [ast.parse(inspect.getsource(module)) for module in modules]
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    return {node.name: dict(_documented_fields(node)) for node in classes}


def _documented_fields(node: ast.ClassDef) -> list[tuple[str, str]]:
    return [
        (statement.target.id, inspect.cleandoc(following.value.value))
        for statement, following in zip(node.body, node.body[1:], strict=False)
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and isinstance(following, ast.Expr)
        and isinstance(following.value, ast.Constant)
        and isinstance(following.value.value, str)
    ]


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
