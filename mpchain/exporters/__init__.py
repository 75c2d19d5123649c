"""Files of other frameworks, made of models."""

from mpchain.exporters import caffe

__all__ = ["caffe"]
