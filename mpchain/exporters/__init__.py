"""Files of other frameworks, made of models."""

from mpchain.exporters import caffe as caffe
