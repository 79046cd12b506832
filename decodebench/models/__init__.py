"""Models: built-in names, hub ids, local folders, PEFT adapters and published MARS checkpoints."""

from decodebench.models.embedded import EMBEDDED
from decodebench.models.loading import LoadedModel, load_model, load_tokenizer

__all__ = ["EMBEDDED", "LoadedModel", "load_model", "load_tokenizer"]
