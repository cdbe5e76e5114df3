"""The only file that changes torchtitan's module globals. Import it before any torchtitan module.

torchtitan 0.3.0 binds ``device_type`` and ``device_module`` at import time (``from torchtitan.tools.utils import ...``)
and assumes an accelerator. The table lists what is changed, and why.

=================================================  ==================================================================
target                                             reason
=================================================  ==================================================================
``torchtitan.tools.utils.device_type/_module``     without an accelerator, ``torch.cpu`` lacks functions that torchtitan
                                                   calls (torchtitan #1661); with "cpu" torchtitan chooses gloo
``RANK``, ``MASTER_ADDR``, ... in the environment  a plain ``python -m`` start has no launcher that sets them
warnings of torch, log lines of torchtitan         on a CPU they warn of random DTensors, which we never draw
                                                   (``models/init.py``), and of an unknown peak rate (MFU)
glibc's malloc                                     it returns the memory of the logits to the kernel at every step; page
                                                   faults took a third of the time of a small run
=================================================  ==================================================================
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import socket
import types
import warnings

import torch
import torchtitan.tools.utils as _titan_utils

DEVICE_VARIABLE = "SAF_TITAN_DEVICE"
"""Environment variable; its value ``cpu`` selects the CPU on a machine with an accelerator."""


def _cpu_device_module() -> types.ModuleType:
    """Return a module with the functions that torchtitan calls on ``torch.cuda``, for the CPU as the only device.

    Peak memory is the largest resident set of the process.
    """
    module = types.ModuleType("saf_titan.compat.cpu")
    total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def memory_stats(device: object = None) -> dict[str, int]:
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {
            "active_bytes.all.peak": peak_bytes,
            "reserved_bytes.all.peak": peak_bytes,
            "num_alloc_retries": 0,
            "num_ooms": 0,
        }

    def get_device_properties(device: object = None) -> types.SimpleNamespace:
        return types.SimpleNamespace(name="CPU", total_memory=total_bytes)

    vars(module).update(
        # one device, so that every rank is cpu:0 and calls barrier(device_ids=[0]), which gloo accepts
        device_count=lambda: 1,
        current_device=lambda: 0,
        is_available=lambda: True,
        set_device=lambda device: None,
        synchronize=lambda device=None: None,
        empty_cache=lambda: None,
        reset_peak_memory_stats=lambda device=None: None,
        get_device_name=lambda device=None: "CPU",
        get_device_properties=get_device_properties,
        memory_stats=memory_stats,
    )
    return module


def device_type() -> str:
    """Return the type of the device that this process trains on, as torch names it: "cpu" or "cuda"."""
    return str(_titan_utils.device_type)


def is_cpu() -> bool:
    """Return whether this process trains on the CPU."""
    return device_type() == "cpu"


def ensure_launcher_environment() -> None:
    """Set the variables that torch.distributed needs to a world of one process, unless a launcher has set them."""
    if "RANK" in os.environ:
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(
        RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )


def _keep_freed_memory() -> None:
    """Make glibc reuse large blocks instead of unmapping them; has no effect on other allocators."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        m_trim_threshold, m_mmap_max = -1, -4
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)


def _is_noise(record: logging.LogRecord) -> bool:
    return record.getMessage().startswith(("Error running lspci", "Peak flops undefined", "Peak FLOPS used"))


if os.environ.get(DEVICE_VARIABLE) == "cpu" or not torch.accelerator.is_available():
    _keep_freed_memory()
    warnings.filterwarnings("ignore", r"DTensor .* may not have complete support on cpu", UserWarning)
    logging.getLogger().addFilter(lambda record: not _is_noise(record))
    _titan_utils.device_type, _titan_utils.device_module = "cpu", _cpu_device_module()
