"""What is computed: scalar expressions, equations, reductions, programs, derivatives. Standard library only."""
