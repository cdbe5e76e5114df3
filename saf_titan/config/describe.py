"""The configuration as text: help for a terminal, and TOML that reads back to the same run."""

import dataclasses
import inspect
import textwrap
from typing import Any

from saf_titan.config.schema import RunConfig
from saf_titan.fields.convert import choices, describe, field_types, is_section, to_toml_value
from saf_titan.fields.docs import field_docs

_WIDTH = 100

EXAMPLES = (
    ("debug_cpu", "1M parameters, three minutes on two CPU cores"),
    ("124m_4k_saf25", "124M parameters, a quarter of the heads frozen half-way"),
    ("1b_8k_saf25", "983M parameters, 4 to 32 GPUs"),
)
"""Some of the run configurations that come with the package, each with a description."""

_USAGE = """\
usage: python -m saf_titan.train --config FILE [--dry-run] [--section.key VALUE ...]
       torchrun --nproc_per_node N -m saf_titan.train --config FILE [--section.key VALUE ...]

    --config FILE            TOML file of the run, or the name of a configuration that comes with the package; keys
                             that it leaves out have the defaults below
    --section.key VALUE      replaces a value of the file; VALUE is TOML, and a string needs no quotes
    --dry-run                describe the run, check its data, and stop; WORLD_SIZE=N in the environment sets the
                             number of ranks
    --help                   print this text

environment:
    SAF_TITAN_DEVICE=cpu     train on the CPU of a machine that has an accelerator

If the folder of the run (dump_folder) has checkpoints, the run resumes from the newest. Exit status: 0 done or stopped
on request, 1 failed, 2 the configuration, the data or the command line is wrong."""


def help_text() -> str:
    """Return the usage and the environment, then every key with its default, its values and its documentation."""
    run = RunConfig()
    lines: list[str] = [_USAGE, "", "configurations, for example:"]
    lines += [f"    {name:<24} {what}" for name, what in EXAMPLES]
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
    """Return a run with every key as TOML; `load_config` reads it back to an equal `RunConfig`."""
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
