"""Declarations, which turn a body and its derivatives, written on arrays, into a function of
Variables."""
