"""Training what the methods need: MARS checkpoints and their autoregressive control."""
