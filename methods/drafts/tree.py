"""Trees of candidates, and the tensors that let one pass check all of their branches."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decodebench.errors import UserError

Path = tuple[int, ...]
"""A node: which of its head's candidates is taken at every depth, 0 for the most probable."""

NAMED = {
    "default": "0;1;2;0.0;0.1;1.0;0.0.0;0.0.1;0.1.0;0.0.0.0",
    "chain": "0;0.0;0.0.0;0.0.0.0",
    "wide": "0;1;2;3;4;5;0.0;0.1;0.2;0.3;1.0;1.1;2.0;0.0.0;0.0.1;0.0.2;0.1.0;1.0.0;0.0.0.0;0.0.0.1;0.0.1.0;0.1.0.0",
}
MOST_SPANNED = 6000


@dataclass(frozen=True)
class Tree:
    """One slot of a draft per node, parents before their children.

    Attributes:
        widths: how many candidates of each head the tree uses.
        candidate: ``[slots]`` which candidate a slot holds, in the list of all heads' candidates.
        mask: bool ``[slots, slots]``: a slot sees itself and the slots on the way to it.
        depth: ``[slots]`` from 0 on.
        parent: ``[slots]`` which prediction of the pass a slot is checked against: 0 is that of the committed text,
            1 + j that after slot j.
        path: ``[slots, longest]`` the slots on the way to each, itself included, then zeros.
    """

    widths: Path
    candidate: Tensor
    mask: Tensor
    depth: Tensor
    parent: Tensor
    path: Tensor


def parse(text: str, heads: int) -> list[Path]:
    """The nodes of a tree, parents first.

    Args:
        text: a name, or all nodes, as in ``0;1;0.0;0.1``: the second head's best and second best candidates after the
            first head's best one, and the first head's second best. Named trees are cut to the number of heads.

    Raises:
        UserError: for what is no tree, or deeper than there are heads.
    """
    parts = [part.strip() for part in NAMED.get(text, text).split(";")]
    if not all(number.isdecimal() for part in parts for number in part.split(".")):
        names = ", ".join(sorted(NAMED))
        raise UserError(f"--tree {text}: give a name ({names}) or paths like 0;1;0.0, of candidates counted from 0")
    paths = sorted((tuple(map(int, part.split("."))) for part in parts), key=lambda path: (len(path), path))
    if text in NAMED:
        paths = [path for path in paths if len(path) <= heads]
    if len(paths[-1]) > heads:
        raise UserError(f"--tree {text}: {_dots(paths[-1])} is {len(paths[-1])} deep, but there are {heads} heads")
    for before, path in zip([(), *paths], paths, strict=False):
        if path == before:
            raise UserError(f"--tree {text}: {_dots(path)} stands there twice")
        if len(path) > 1 and path[:-1] not in paths:
            raise UserError(f"--tree {text}: not a tree, {_dots(path)} has no parent {_dots(path[:-1])}")
    return paths


def build(paths: list[Path], full: dict[str, Tensor], widths: Path) -> Tree:
    """A tree cut out of the buffers of the full one that spans it.

    Args:
        paths: nodes, parents first.
        full: what ``medusa.model.utils.generate_medusa_buffers`` returns for ``[1, *widths]``. Its slot 0 is a root:
            the last committed token, which is no candidate.
    """
    leaf = [np.ravel_multi_index(path + (0,) * (len(widths) - len(path)), widths) for path in paths]
    ways = [full["retrieve_indices"][i, 1 : len(path) + 1].tolist() for i, path in zip(leaf, paths, strict=True)]
    slots = torch.tensor([way[-1] for way in ways])
    place = {slot: i for i, slot in enumerate(slots.tolist())}
    local = [[place[slot] for slot in way] for way in ways]
    return Tree(
        widths,
        full["tree_indices"][slots] - 1,
        full["medusa_attn_mask"][0, 0][slots][:, slots] > 0,
        full["medusa_position_ids"][slots] - 1,
        torch.tensor([1 + way[-2] if len(way) > 1 else 0 for way in local]),
        torch.tensor([way + [0] * (len(widths) - len(way)) for way in local]),
    )


def spanned(text: str, paths: list[Path]) -> Path:
    """The widths of the smallest full tree that holds these nodes.

    Raises:
        UserError: when that is too large to be built.
    """
    widths = tuple(max(p[depth] for p in paths if len(p) > depth) + 1 for depth in range(len(paths[-1])))
    size = sum(math.prod(widths[: depth + 1]) for depth in range(len(widths)))
    if size > MOST_SPANNED:
        raise UserError(
            f"--tree {text}: takes up to {' × '.join(map(str, widths))} candidates, a full tree of {size} nodes: "
            f"use lower candidates, for {MOST_SPANNED} at most"
        )
    return widths


def moved(tree: Tree, device: torch.device) -> Tree:
    """The same tree with its tensors on a device."""
    fields: dict[str, Any] = {name: getattr(tree, name).to(device) for name in Tree.__annotations__ if name != "widths"}
    return Tree(tree.widths, **fields)


def _dots(path: Path) -> str:
    return ".".join(map(str, path))
