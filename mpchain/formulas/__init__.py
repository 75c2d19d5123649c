"""Formulas as data: traces Python functions of arrays, and rewrites them as text.

:mod:`operators` has the table of operations, and :mod:`symbol` traces formulas. :mod:`writer`
writes traced formulas as C for fused GPU kernels, as Python, and as Python for numba;
:mod:`in_place` writes them for NumPy arrays. Python text is compiled by
:func:`mpchain.formulas.text.compile_text`.
"""
