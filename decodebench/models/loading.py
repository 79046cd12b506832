"""From a name to a model that is ready to decode."""

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from decodebench.decoding.compiled import CompiledPass
from decodebench.decoding.forward import check_supported
from decodebench.errors import UserError, first_line, unknown
from decodebench.hub import impatient_hub
from decodebench.models import adapters, embedded
from decodebench.models.devices import fast_dtype, requested_dtype, resolve_device

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
        graphs: whether decoding passes on CUDA are recorded as graphs and replayed.
        compiled: the pass of one token on a CPU, where it is compiled; see :func:`.compile_pass`.
    """

    name: str
    model: Any
    tokenizer: Any
    stop_tokens: frozenset[int]
    card: dict[str, Any] = field(default_factory=dict)
    graphs: bool = True
    compiled: CompiledPass | None = None

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    def token_id(self, token: str) -> int | None:
        """The id of a token given by its text or by its number; ``None`` where the model has no such token."""
        known = self.model.get_input_embeddings().weight.shape[0]
        found = self.tokenizer.get_vocab().get(token, int(token) if token.isdecimal() else None)
        return found if found is not None and found < known else None


def built_in_names() -> list[str]:
    """Models that need neither a folder nor the hub."""
    return [embedded.EMBEDDED, *adapters.shipped_names()]


def load_model(name: str, dtype: str = "auto", device: str = "auto", adapter: str | None = None) -> LoadedModel:
    """Load a model for decoding.

    Args:
        name: a built-in name, a local folder (a checkpoint or a PEFT adapter), or a hub id. Folders in the published
            MARS format (``model_type: a2d-qwen2``) are read as the plain architecture they hold. Code that comes with
            a checkpoint is never run.
        dtype: ``auto`` (the checkpoint's own, unless the device is slow in it), ``float32``, ``bfloat16`` or
            ``float16``.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:n`` or ``mps``.
        adapter: a PEFT adapter to merge into the model: a local folder or a hub id.

    Raises:
        UserError: for what is not there, does not fit together, or cannot be decoded; the message says which.
    """
    place, asked = resolve_device(device), requested_dtype(dtype)
    asked_for, chain = adapter or name, [adapter] if adapter else []
    name, below = _adapters_below(name)
    chain = below + chain
    source = _locate(name, chain[0] if below else None)
    with contextlib.ExitStack() as stack:
        hub = next((place for place in (source, *chain) if not Path(place).exists()), None)
        refusal = stack.enter_context(impatient_hub(hub, "model")) if hub else None
        model, tokenizer, card = _load_checkpoint(source, name, asked, refusal)
        own = model.dtype
        for adapter in chain:
            own_card = read_card(adapter)
            gate = _gate(own_card, tokenizer, adapter) if own_card.get("gated") else None
            model = adapters.apply_adapter(model, adapter, name, gate)
            card |= own_card
            if (Path(adapter) / "tokenizer_config.json").is_file():  # with a mask token that the base has not
                tokenizer = _config_and_tokenizer(source, name, adapter)[1]
    check_supported(model)
    kind = asked or fast_dtype(own, place)
    if model.dtype != kind:
        adapters.cast_parameters(model, kind)
    model = model.to(place).eval().requires_grad_(False)
    return LoadedModel(asked_for, model, tokenizer, _stop_tokens(model, tokenizer), card)


def _adapters_below(name: str) -> tuple[str, list[str]]:
    """The base model of a name, and the adapters to apply to it, in order: an adapter may be made for another one."""
    chain: list[str] = []
    while folder := adapters.adapter_folder(name):
        if str(folder) in chain:
            raise UserError(f"adapter '{name}' names itself as its base model")
        chain.insert(0, str(folder))
        name = adapters.base_of(folder)
    return name, chain


def _gate(card: dict[str, Any], tokenizer: Any, adapter: str) -> int:
    found = tokenizer.get_vocab().get(card.get("mask_token"))
    if found is None:
        raise UserError(f"{CARD} of '{adapter}' says gated, but names no mask token of its base model")
    return int(found)


def _locate(name: str, adapter: str | None = None) -> str:
    """What ``from_pretrained`` takes for a name; ``adapter`` is who named it, if not the user."""
    try:
        return _find(name)
    except UserError as error:
        if adapter is None:
            raise
        raise UserError(f"{error}; adapter '{adapter}' was made for it: use --model BASE --adapter ADAPTER") from error


def _find(name: str) -> str:
    if name == embedded.EMBEDDED:
        return str(embedded.embedded_folder())
    if Path(name).is_dir():
        if not (Path(name) / "config.json").is_file():
            raise UserError(f"model folder '{name}' has no config.json: it holds neither a checkpoint nor an adapter")
        return name
    if name.startswith((".", "~", "/")) or name.count("/") > 1:
        raise UserError(f"model folder '{name}' does not exist")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise unknown("model", name, [*built_in_names(), "ORG/NAME (a hub id)", "./FOLDER"])
    return name


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a model, without its weights; names and errors are those of `load_model`."""
    name, chain = _adapters_below(name)
    source = _locate(name)
    own = next((place for place in reversed(chain) if (Path(place) / "tokenizer_config.json").is_file()), None)
    hub = contextlib.nullcontext() if Path(source).exists() else impatient_hub(source, "model")
    with hub as refusal, _loading(source, name, refusal):
        _, tokenizer, _ = _config_and_tokenizer(source, name, own)
        return tokenizer


def _load_checkpoint(
    source: str, name: str, dtype: torch.dtype | None, refusal: str | None
) -> tuple[Any, Any, dict[str, Any]]:
    """Model, tokenizer and card; `refusal` says why the hub cannot be reached, if it cannot."""
    from transformers import AutoModelForCausalLM

    with _loading(source, name, refusal):
        config, tokenizer, raw = _config_and_tokenizer(source, name)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source, config=config, dtype=dtype or "auto", trust_remote_code=False, output_loading_info=True
        )
        model, report = loaded
        if report["missing_keys"]:  # transformers would go on with random ones
            raise ValueError(f"its weights lack {min(report['missing_keys'])}")
    card = dict(embedded.CARD) if name == embedded.EMBEDDED else _published_card(raw, name) | read_card(source)
    return model, tokenizer, card


def _config_and_tokenizer(source: str, name: str, words: str | None = None) -> tuple[Any, Any, dict[str, Any]]:
    """The configuration as it is used, the tokenizer, and the configuration as it is written.

    The tokenizer is the one in the folder ``words``, where it is not the checkpoint's own.
    """
    from transformers import CONFIG_MAPPING, AutoConfig, AutoTokenizer, PretrainedConfig, __version__

    raw, _ = PretrainedConfig.get_config_dict(source)
    if not raw.get("model_type"):
        raise ValueError("its config.json names no model_type" if raw else "it has no config.json")
    plain = _plain(raw)
    if plain["model_type"] not in CONFIG_MAPPING:
        raise ValueError(f"transformers {__version__} knows no model_type '{plain['model_type']}'")
    config = AutoConfig.for_model(**plain)
    # an encoder-decoder has no causal class to load; say so here rather than in transformers' words
    if config.is_encoder_decoder:
        raise UserError(f"{name} is an encoder-decoder model: decodebench decodes causal (decoder-only) models")
    tokenizer = AutoTokenizer.from_pretrained(words or source, config=config, trust_remote_code=False)
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # transformers makes an empty one where there is none
        raise ValueError("it has no tokenizer")
    return config, tokenizer, raw


@contextlib.contextmanager
def _loading(source: str, name: str, refusal: str | None) -> Iterator[None]:
    """Without transformers' remarks and bars, and with its errors in one line."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # transformers and the hub client raise whatever their libraries do
        reason = first_line(error)
        if not Path(source).is_dir():
            hub = f"the hub is out of reach ({refusal})" if refusal else f"from the hub: {reason}"
            reason = f"no such folder here, and {hub}"
        raise UserError(f"model '{name}' cannot be loaded: {reason}") from error


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """A published MARS configuration as the plain architecture whose weights it holds; others unchanged.

    Such a checkpoint names its own classes (``auto_map``), which only change the attention mask for training.
    """
    kind = config["model_type"]
    if not kind.startswith("a2d-"):
        return {k: v for k, v in config.items() if k != "auto_map"}
    dropped = {"auto_map", "is_causal", "architectures"}
    return {k: v for k, v in config.items() if k not in dropped} | {"model_type": kind.removeprefix("a2d-")}


def _published_card(config: dict[str, Any], name: str) -> dict[str, Any]:
    """What the name of a published checkpoint says (``…-blk8``, ``…-BD3LM-blk4``): it has no card."""
    size = re.search(r"(BD3LM)?-blk(\d+)", name)
    if not size or not config["model_type"].startswith("a2d-"):
        return {}
    return {"diffusion_block_size" if size[1] else "block_size": int(size[2])}


def _stop_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    found: set[int] = set()
    for ids in (model.generation_config.eos_token_id, tokenizer.eos_token_id):
        if ids is not None:
            found.update([ids] if isinstance(ids, int) else ids)
    return frozenset(found)


def read_card(source: str) -> dict[str, Any]:
    """A checkpoint's own record, from its folder or the hub; empty where it has none."""
    from transformers.utils import cached_file

    try:
        path = cached_file(source, CARD, _raise_exceptions_for_missing_entries=False)
        card = json.loads(Path(path).read_text(encoding="utf-8")) if path else {}
    except OSError:
        return {}
    except ValueError as error:
        raise UserError(f"{CARD} of '{source}' is not valid JSON: {error}") from error
    if not isinstance(card, dict):
        raise UserError(f"{CARD} of '{source}' is not a JSON object")
    if not isinstance(card.get("block_size", 2), int) or card.get("block_size", 2) < 2:
        raise UserError(f"{CARD} of '{source}': block_size must be a whole number from 2 on")
    return card
