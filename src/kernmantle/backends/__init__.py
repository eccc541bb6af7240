"""Machines: plans for a loop nest, their text, and what compiles and starts it. Knows nothing of torch."""
