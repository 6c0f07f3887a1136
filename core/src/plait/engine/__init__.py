"""From requests to text: sampling, the step loop, the thread that owns MLX, and the ways in."""
