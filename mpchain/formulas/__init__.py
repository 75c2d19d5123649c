"""Formulas as data: Python functions of arrays are traced and rewritten as text.

:mod:`operators` has the table of operations, and :mod:`symbol` traces them. :mod:`writer` writes
them as C for fused GPU kernels, as Python, and for numba; :mod:`in_place` writes them for NumPy
arrays. Python text is compiled by :func:`mpchain.formulas.text.compile_text`.
"""
