"""Structured matrices: Kronecker products, Kronecker-sparse products, and products along one mode."""
