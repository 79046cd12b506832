"""How much memory is free."""

import os

import torch


def available_memory(device: torch.device) -> int:
    """Bytes that are free on a device, as far as the system tells."""
    if device.type == "cuda":
        # what torch has taken from the device and not given to anybody
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
