"""An ensemble as one file that answers probabilities, without this library."""

from pfge.export.exported import Exported, ExportError
from pfge.export.onnx_file import export_onnx
from pfge.export.torch_file import export_torch

__all__ = ["ExportError", "Exported", "export_onnx", "export_torch"]
