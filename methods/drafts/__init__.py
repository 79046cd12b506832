"""Where drafts come from: the sources that speculative decoding can take its guesses from."""

from decodebench.methods.drafts.early_exit import EarlyExit
from decodebench.methods.drafts.lookup import Lookup
from decodebench.methods.drafts.model import DraftModel, load_draft
from decodebench.methods.drafts.source import DraftSource, Proposal

__all__ = ["DraftModel", "DraftSource", "EarlyExit", "Lookup", "Proposal", "load_draft"]
