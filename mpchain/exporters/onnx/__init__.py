"""Export of models to ONNX, and ONNX models as links."""

from mpchain.exporters.onnx.exporting import export as export
from mpchain.exporters.onnx.functions import not_expressible as not_expressible
from mpchain.exporters.onnx.importing import ONNXModel as ONNXModel
