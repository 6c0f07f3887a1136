"""Which tokens run in the next step, and which pages they hold. Knows nothing of MLX."""
