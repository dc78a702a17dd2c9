"""An ensemble as one file that predicts without this library."""

from pfge.export.ensemble_graph import Exported, ExportError
from pfge.export.onnx import export_onnx
from pfge.export.torch_export import export_torch

__all__ = ["ExportError", "Exported", "export_onnx", "export_torch"]
