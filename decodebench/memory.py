"""How much memory is free, and how an amount of it is written."""

import os
from collections.abc import Iterator
from pathlib import Path

import torch

GIB = 1 << 30
GROUPS, OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def available_memory(device: torch.device) -> int:
    """Bytes that are free on a device, as far as the system tells."""
    if device.type == "cuda":
        # what torch has taken from the device and not given to anybody
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    return min([_free(), *_left_in_groups()])


def readable(count: int) -> str:
    """Bytes for people: ``1.5 GiB``, or ``80.0 MiB`` below a tenth of one."""
    return f"{count / GIB:.1f} GiB" if count >= GIB // 10 else f"{count / (1 << 20):.1f} MiB"


def _free() -> int:
    """Of the machine."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _left_in_groups() -> Iterator[int]:
    """Of the limits of this process's control groups (version 2), as containers have them."""
    try:
        line = next(line for line in OWN_GROUP.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return
    group = GROUPS / line.removeprefix("0::").strip().lstrip("/")
    for folder in [group, *group.parents]:
        if not folder.is_relative_to(GROUPS):
            return
        try:
            limit, used = (folder / "memory.max").read_text().strip(), int((folder / "memory.current").read_text())
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            # the cache of files counts as used, and is given up when memory is needed
            reclaimable = int(statistics.get("inactive_file", 0))
        except (OSError, ValueError):
            continue
        if limit != "max":
            yield max(int(limit) - used + reclaimable, 0)
