"""Proves that N ranks compute what one process computes, or finds the first difference.

``mpchain-launch prove -n N script`` runs the first updates of a program twice by ``python -m
mpchain.prove``: on N ranks, where :mod:`mpchain.prove.tracer` writes down what each update computes
(:mod:`mpchain.prove.records`), then in one process, which is given the ranks' batches, joined, and
compares (:mod:`mpchain.prove.comparison`). :mod:`mpchain.prove.causes` says what is likely wrong.
"""
