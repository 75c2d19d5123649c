"""Runs programs written for Chainer and ChainerMN: ``import chainer`` imports mpchain."""

from mpchain.compat.modules import install as install
from mpchain.compat.modules import uninstall as uninstall
