"""Training what the methods need: MARS checkpoints and their control, heads for drafts, block diffusion."""
