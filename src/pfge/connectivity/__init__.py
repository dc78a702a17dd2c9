"""Curves and planes between points in weight space."""

from pfge.connectivity.curves import Bezier, Curve, PolygonalChain
from pfge.connectivity.fitting import fit_curve
from pfge.connectivity.plane import Plane
from pfge.connectivity.tracing import AlongCurve, CurveTrace, mode_connectivity, trace_curve

__all__ = [
    "AlongCurve",
    "Bezier",
    "Curve",
    "CurveTrace",
    "Plane",
    "PolygonalChain",
    "fit_curve",
    "mode_connectivity",
    "trace_curve",
]
