"""Lists the folders of mpchain and the launcher's script; everything else is in pyproject.toml."""

import pathlib

from setuptools import find_packages, setup

HERE = pathlib.Path(__file__).parent

# Annexes (mpchain/annexes.py), the launcher among them, may have been deleted.
FOLDERS = {
    "mpchain_launch": "launch",
    "mpchain.launch": "launch/as_module",
    "mpchain.examples": "examples",
}
FOLDERS = {package: folder for package, folder in FOLDERS.items() if (HERE / folder).exists()}

setup(
    packages=[*find_packages(include=["mpchain", "mpchain.*"]), *FOLDERS],
    package_dir=FOLDERS,
    entry_points={
        "console_scripts": ["mpchain-launch = mpchain_launch:main"] * ("mpchain_launch" in FOLDERS)
    },
)
