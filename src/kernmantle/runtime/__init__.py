"""Text to bytes to launch: the cache and the compilers. Knows nothing of contractions."""
