"""Formulas as data: Python text that computes on arrays is traced, and written anew.

:mod:`symbol` traces; :mod:`in_place` writes for NumPy arrays, :mod:`c` for fused GPU kernels,
:mod:`loop` for numba. What is Python is compiled by :func:`mpchain.formulas.text.compile_text`.
"""
