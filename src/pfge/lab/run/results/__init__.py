"""What experiments find, as frozen values: the lab writes them as JSON, reports read them."""

from pfge.lab.run.results.base import VERSION, Count, Finite, MeasuredRow, Place, Quantity, Result, ResultRow
from pfge.lab.run.results.comparison import (
    AtMemberTemperatures,
    AtTemperature,
    ComparisonRow,
    StartWeights,
    expected_rows,
)
from pfge.lab.run.results.connectivity import ConnectivityRow
from pfge.lab.run.results.diagnosis import AdjacentMembers, Change, Diagnoses, Diagnosis, Gains
from pfge.lab.run.results.evaluation import CorruptedInputs, EnsembleEvaluation, Separation, UnknownInputs
from pfge.lab.run.results.formats import FormatRow
from pfge.lab.run.results.landscape import Landscape

__all__ = [
    "VERSION",
    "AdjacentMembers",
    "AtMemberTemperatures",
    "AtTemperature",
    "Change",
    "ComparisonRow",
    "ConnectivityRow",
    "CorruptedInputs",
    "Count",
    "Diagnoses",
    "Diagnosis",
    "EnsembleEvaluation",
    "Finite",
    "FormatRow",
    "Gains",
    "Landscape",
    "MeasuredRow",
    "Place",
    "Quantity",
    "Result",
    "ResultRow",
    "Separation",
    "StartWeights",
    "UnknownInputs",
    "expected_rows",
]
