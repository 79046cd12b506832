"""An HTTP face for the engine that OpenAI's clients understand."""
