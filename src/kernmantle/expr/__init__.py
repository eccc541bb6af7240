"""Scalar expressions: what a lambda computes. Standard library only."""
