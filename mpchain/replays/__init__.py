"""Records of training runs, and their replay in one process.

``mpchain-launch --record`` lets rank 0 write, for each step, fingerprints of parameters and losses.
``mpchain-launch replay`` computes the steps again in one process and compares.
"""
