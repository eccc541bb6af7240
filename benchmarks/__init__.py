"""Measurements against peers: tables of cases, one honest clock, rows that say where they come from.

``python -m benchmarks cpu`` runs a suite; a case is a row of the suite's table.
"""
