"""Equations, programs, their derivatives, and the plans of every backend."""
