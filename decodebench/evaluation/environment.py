"""What a number depends on besides the configuration: versions and hardware."""

import contextlib
import hashlib
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import decodebench

PACKAGES = ("torch", "transformers", "tokenizers", "lm_eval", "peft", "accelerate", "datasets", "numpy")


def environment(device: torch.device) -> dict[str, Any]:
    """Versions and hardware of this process, as a run records them; no user, host or path names."""
    return {
        "decodebench": decodebench.__version__,
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": _memory(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "packages": {name: _version(name) for name in PACKAGES},
    }


def fingerprint(model: torch.nn.Module) -> str:
    """Tells one checkpoint from another under the same name, from a few numbers of every weight."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        flat = weight.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // 64)][:64].float().cpu()
        digest.update(f"{name} {tuple(weight.shape)}".encode() + sample.numpy().tobytes())
    return digest.hexdigest()[:16]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """The commit of the checkout that the toolkit runs from, with a + where files were changed since."""
    folder = Path(decodebench.__file__).parent
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


class PeakMemory:
    """Peak memory between two points: of the device where it keeps count, else of this process."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        elif sys.platform == "linux":
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM

    def bytes(self) -> int | None:
        """Bytes at the peak since this object was made; ``None`` where the system does not tell."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        try:
            status = Path("/proc/self/status").read_text()
        except OSError:
            return None
        peak = next((line for line in status.splitlines() if line.startswith("VmHWM")), None)
        return int(peak.split()[1]) * 1024 if peak else None
