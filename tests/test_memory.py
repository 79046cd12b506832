"""Free memory is what the machine has and what its control groups leave, whichever is less."""

from pathlib import Path

import pytest
import torch

from decodebench import memory

CPU = torch.device("cpu")


def limit(group: Path, most: str, used: int, cache: int = 0) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(most + "\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon {used - cache}\ninactive_file {cache}\n")


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process in the group "pod/box" of a machine of which nothing else is known."""
    monkeypatch.setattr(memory, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(memory, "OWN_GROUP", tmp_path / "own")
    (tmp_path / "own").write_text("4:memory:/old\n0::/pod/box\n")
    (tmp_path / "groups").mkdir()
    return tmp_path / "groups"


def test_the_narrowest_group_counts_and_cached_files_do_not(groups: Path) -> None:
    limit(groups / "pod" / "box", "max", 700_000)
    limit(groups / "pod", "1000000", 700_000, cache=50_000)
    assert memory.available_memory(CPU) == 350_000
    limit(groups / "pod" / "box", "800000", 700_000, cache=50_000)
    assert memory.available_memory(CPU) == 150_000
    limit(groups / "pod" / "box", "800000", 900_000)
    assert memory.available_memory(CPU) == 0


def test_without_limits_the_machine_counts(groups: Path, tmp_path: Path) -> None:
    assert memory.available_memory(CPU) > 1 << 20
    limit(groups / "pod" / "box", "max", 700_000)
    assert memory.available_memory(CPU) > 1 << 20
    (tmp_path / "own").unlink()
    assert memory.available_memory(CPU) > 1 << 20
