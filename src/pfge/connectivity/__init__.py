"""Curves and planes between points in weight space."""

from pfge.connectivity.curves import Bezier, Curve, Plane, PolygonalChain
from pfge.connectivity.fitting import AlongCurve, CurveTrace, fit_curve, mode_connectivity, trace_curve

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
