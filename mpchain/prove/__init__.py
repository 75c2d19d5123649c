"""Proves that N ranks compute the same results as one process, or finds the first difference.

``mpchain-launch prove -n N script`` runs the first updates of a program twice with ``python -m
mpchain.prove``. The first run is on N ranks, where :mod:`mpchain.prove.tracer` records the results
of each update (:mod:`mpchain.prove.records`). The second run is in one process, which gets the
ranks' joined batches and compares its results (:mod:`mpchain.prove.comparison`).
:mod:`mpchain.prove.causes` names the likely cause of a difference.
"""
