"""Programs: scalar expressions, equations, reductions, programs, derivatives. Standard library only."""
