"""An HTTP face for the engine that OpenAI's clients understand."""

EXTRA = "decodebench"
"""The field of a choice in which we say what OpenAI's form has no place for."""
