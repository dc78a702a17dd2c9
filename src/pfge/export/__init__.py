"""An ensemble as one file that predicts without this library."""

from pfge.export.onnx import export_onnx
from pfge.export.torch_export import export_torch
from pfge.export.verified_file import Exported, ExportError

__all__ = ["ExportError", "Exported", "export_onnx", "export_torch"]
