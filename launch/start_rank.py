"""Runs rank.py; mpirun starts this file by its path, so that it works from any folder.

This file builds the package by hand, because a normal import would run the __init__.py of mpchain
or of the launcher, and slow down the start of every rank.
"""

import os
import sys

if __name__ == "__main__":
    package = type(sys)("launch")
    package.__path__ = [os.path.dirname(os.path.abspath(__file__))]
    sys.modules["launch"] = package

    from launch.rank import main

    sys.exit(main(sys.argv[1:]))
