"""From a name to a model that is ready to decode."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from decodebench.decoding.forward import check_supported
from decodebench.errors import UserError, unknown
from decodebench.models import embedded

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CARD = "card.json"


@dataclass
class LoadedModel:
    """A model, its tokenizer and what its checkpoint says of itself.

    Attributes:
        name: as it was asked for.
        model: a ``PreTrainedModel`` in evaluation mode.
        tokenizer: of the checkpoint.
        stop_tokens: ids that end an answer.
        card: the checkpoint's own record (``card.json``): mask token, block size, recipe; empty where it has none.
    """

    name: str
    model: Any
    tokenizer: Any
    stop_tokens: frozenset[int]
    card: dict[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    def token_id(self, token: str) -> int | None:
        """The id of a token given by its text or by its number; ``None`` where the vocabulary has no such token."""
        vocabulary = self.tokenizer.get_vocab()
        if token in vocabulary:
            return vocabulary[token]
        if token.isdecimal() and int(token) < self.model.get_output_embeddings().weight.shape[0]:
            return int(token)
        return None


def load_model(name: str, dtype: str = "auto", device: str = "auto", adapter: str | None = None) -> LoadedModel:
    """Load a model for decoding.

    Args:
        name: a built-in name, a local folder (a checkpoint or a PEFT adapter), or a hub id. Folders in the published
            MARS format (``model_type: a2d-qwen2``) are read as the plain architecture they hold. Code that comes with
            a checkpoint is never run.
        dtype: ``auto`` (the checkpoint's own; float32 where a CPU has no fast bfloat16), ``float32``, ``bfloat16`` or
            ``float16``.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:n`` or ``mps``.
        adapter: a PEFT adapter to merge into the model: a local folder or a hub id.

    Raises:
        UserError: for what is not there, does not fit together, or cannot be decoded; the message says which.
    """
    place = resolve_device(device)
    if adapter is None and (Path(name) / "adapter_config.json").is_file():
        name, adapter = _base_of(Path(name)), name
    source = _locate(name)
    model, tokenizer = _load_checkpoint(source, name)
    card = dict(embedded.CARD) if name == embedded.EMBEDDED else _read_card(source)
    kind = _resolve_dtype(dtype, model.dtype, place)
    if adapter is not None:
        model = _merge_adapter(model, adapter, name)
        card |= _read_card(adapter)
    check_supported(model)
    model = model.to(device=place, dtype=kind).eval().requires_grad_(False)
    return LoadedModel(adapter or name, model, tokenizer, _stop_tokens(model, tokenizer), card)


def resolve_device(device: str) -> torch.device:
    """The device a user means.

    Raises:
        UserError: when there is no such device here.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", device):
        raise UserError(f"--device {device}: choose auto, cpu, cuda, cuda:N or mps")
    place = torch.device(device)
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UserError(f"--device {device}: torch {torch.__version__} sees {count} CUDA devices here")
    if place.type == "mps" and not torch.backends.mps.is_available():
        raise UserError(f"--device {device}: torch {torch.__version__} has no Metal device here")
    return place


def _resolve_dtype(dtype: str, own: torch.dtype, device: torch.device) -> torch.dtype:
    if dtype != "auto":
        if dtype not in DTYPES:
            raise unknown("dtype", dtype, ["auto", *DTYPES])
        return DTYPES[dtype]
    if own in (torch.bfloat16, torch.float16) and device.type == "cpu" and not _fast_bfloat16():
        return torch.float32
    return own


def _fast_bfloat16() -> bool:
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):
        return False


def _locate(name: str) -> str:
    """What ``from_pretrained`` takes for a name."""
    if name == embedded.EMBEDDED:
        return str(embedded.embedded_folder())
    if Path(name).is_dir():
        if not (Path(name) / "config.json").is_file():
            raise UserError(f"model folder '{name}' has no config.json: it holds neither a checkpoint nor an adapter")
        return name
    if name.startswith((".", "~", "/")) or name.count("/") > 1:
        raise UserError(f"model folder '{name}' does not exist")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise unknown("model", name, [embedded.EMBEDDED, "ORG/NAME (a hub id)", "./FOLDER"])
    return name


def _load_checkpoint(source: str, name: str) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        raw, _ = PretrainedConfig.get_config_dict(source)
        if not raw:
            raise OSError("it has no config.json")
        config = AutoConfig.for_model(**_plain(raw))
        # an encoder-decoder has no causal class to load; say so here rather than in transformers' words
        if config.is_encoder_decoder:
            raise UserError(f"{name} is an encoder-decoder model: decodebench decodes causal (decoder-only) models")
        tokenizer = AutoTokenizer.from_pretrained(source, config=config, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(source, config=config, dtype="auto", trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        where = "no such folder here, and from the hub: " if not Path(source).is_dir() else ""
        raise UserError(f"model '{name}' cannot be loaded: {where}{first}") from error
    return model, tokenizer


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """A published MARS configuration as the plain architecture whose weights it holds; others unchanged.

    Such a checkpoint names its own classes (``auto_map``), which only change the attention mask for training.
    """
    kind = config.get("model_type", "")
    if not kind.startswith("a2d-"):
        return {k: v for k, v in config.items() if k != "auto_map"}
    dropped = {"auto_map", "is_causal", "architectures"}
    return {k: v for k, v in config.items() if k not in dropped} | {"model_type": kind.removeprefix("a2d-")}


def _stop_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    found: set[int] = set()
    for ids in (model.generation_config.eos_token_id, tokenizer.eos_token_id):
        if ids is not None:
            found.update([ids] if isinstance(ids, int) else ids)
    return frozenset(found)


def _read_card(source: str) -> dict[str, Any]:
    """A checkpoint's own record, from its folder or the hub; empty where it has none."""
    from transformers.utils import cached_file

    try:
        path = cached_file(source, CARD, _raise_exceptions_for_missing_entries=False)
        return json.loads(Path(path).read_text(encoding="utf-8")) if path else {}
    except OSError:
        return {}
    except ValueError as error:
        raise UserError(f"{CARD} of '{source}' is not valid JSON: {error}") from error


def _base_of(adapter: Path) -> str:
    try:
        base = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8")).get("base_model_name_or_path")
    except ValueError as error:
        raise UserError(f"adapter_config.json of '{adapter}' is not valid JSON: {error}") from error
    if not base:
        raise UserError(f"adapter '{adapter}' does not name its base model: use --model BASE --adapter {adapter}")
    return base


def _merge_adapter(model: Any, adapter: str, base: str) -> Any:
    from peft import PeftModel

    try:
        # in float32: in bfloat16 a small update would be rounded away
        return PeftModel.from_pretrained(model.to(torch.float32), adapter).merge_and_unload()
    except (RuntimeError, ValueError, KeyError) as error:
        raise UserError(
            f"adapter '{adapter}' does not fit model '{base}': it was made for another model ({_first_line(error)})"
        ) from error
    except OSError as error:
        raise UserError(f"adapter '{adapter}' cannot be loaded: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
