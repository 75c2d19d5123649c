"""Declarations: converts bodies and derivatives on arrays to functions of Variables."""
