"""ONNX: :mod:`mpchain.exporters.onnx` under a shorter name."""

from mpchain.exporters.onnx import ONNXModel as ONNXModel
from mpchain.exporters.onnx import export as export
from mpchain.exporters.onnx import not_expressible as not_expressible
