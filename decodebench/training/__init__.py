"""Training what the methods need: MARS and its control, Medusa heads, heads for early exits, block diffusion."""
