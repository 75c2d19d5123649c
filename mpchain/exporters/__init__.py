"""Export of models to files of other frameworks."""

from mpchain.exporters import caffe as caffe
