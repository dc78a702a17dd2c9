"""Figures that tell whether a predictor can be trusted: reliability, corrupted and unknown inputs."""

from collections.abc import Mapping

import torch
from torch import Tensor

from pfge.lab.run.folder import find_scores
from pfge.lab.run.results import Separation
from pfge.metrics.scores import bin_by_confidence
from pfge.reports.figures.figure import Figure, Panel, Series, axis_label, figure_of
from pfge.reports.run import Run
from pfge.reports.statistics import Estimate, paired_metrics
from pfge.tasks import Metric

BINS = 15
FEWEST = 20
"""A bin with fewer predictions says nothing about how often they are right."""


def reliability(run: Run) -> Figure | None:
    """Return accuracy against confidence, as predicted and at the temperature fitted on validation data."""
    panels = []
    for title, prefix in (("as predicted", "test"), ("at the fitted temperature", "test.calibrated")):
        series = []
        for method in run.methods:
            confidence, correct = _scores(run, method, prefix)
            if not len(confidence):
                continue
            bins = bin_by_confidence(confidence, correct, BINS, equal_mass=False)
            kept = [index for index, count in enumerate(bins.count) if count >= FEWEST]
            series.append(
                Series(method, [bins.confidence[i] for i in kept], [bins.accuracy[i] for i in kept], method)
            )
        panels.append(Panel(title, "confidence", "accuracy", series, diagonal=True))
    return figure_of(
        "reliability",
        "Reliability",
        f"How often predictions of a confidence are right, in {BINS} bins of equal width, all seeds "
        f"together; on the diagonal, confidence can be taken at its word. Bins of fewer than {FEWEST} "
        "predictions are left out.",
        panels,
    )


def _scores(run: Run, method: str, prefix: str) -> tuple[Tensor, Tensor]:
    """Return the confidence of each prediction of all seeds and whether it is right."""
    found: list[tuple[Tensor, Tensor]] = []
    for seed in run.seeds:
        tensors = find_scores(run.folder.scores(seed, method))
        pair = tensors.get(f"{prefix}.confidence"), tensors.get(f"{prefix}.correct")
        match pair:
            case Tensor(ndim=1) as confidences, Tensor(ndim=1) as hits:
                found.append((confidences, hits))
    if not found:
        return torch.empty(0), torch.empty(0)
    confidence, correct = zip(*found, strict=True)
    return torch.cat(confidence), torch.cat(correct)


def corruptions(run: Run) -> Figure | None:
    """Return the paired metrics against the strength of each corruption that was measured."""
    names = dict.fromkeys(name for _, _, found in run.evaluations for name in found.corruptions)
    panels = [_corrupted_panel(run, name, metric) for metric in paired_metrics(run.results) for name in names]
    return figure_of(
        "corruptions",
        "Corrupted inputs",
        "The test images corrupted at five strengths, for the ensembles that pfge evaluate --corruptions "
        "measured; mean over their seeds, bands are one standard error.",
        panels,
    )


def _corrupted_panel(run: Run, name: str, metric: Metric) -> Panel:
    found: dict[str, list[dict[int, float]]] = {}
    for _, method, evaluation in run.evaluations:
        if measured := evaluation.corruptions.get(name):
            by_strength = {0: evaluation.test} | {of.strength: of.metrics for of in measured}
            values = {strength: metric.factor * of[metric.name] for strength, of in by_strength.items()}
            found.setdefault(method, []).append(values)
    series = []
    for method, of_seeds in found.items():
        strengths = sorted(of_seeds[0])
        alike = [values for values in of_seeds if sorted(values) == strengths]
        estimates = [Estimate.of([values[strength] for values in alike]) for strength in strengths]
        series.append(Series.of_estimates(method, [float(s) for s in strengths], estimates, method=method))
    places = sorted({strength for of_seeds in found.values() for values in of_seeds for strength in values})
    ticks = [(float(place), str(place) if place else "none") for place in places]
    label = axis_label(metric)
    return Panel(f"{name}: {label}", "strength", label, series, x_ticks=ticks)


def unknown_inputs(run: Run) -> Figure | None:
    """Return how well each score tells unknown inputs from the test set, for each unknown data set."""
    names = dict.fromkeys(name for _, _, found in run.evaluations for name in found.ood)
    return figure_of(
        "unknown-inputs",
        "Unknown inputs",
        "The chance that an image of another data set gets a higher score of being unknown than a test image "
        "(AUROC; 50 % is guessing), for the ensembles that pfge evaluate --ood measured; bars are one "
        "standard error over seeds.",
        [_unknown(run, name) for name in names],
    )


def _unknown(run: Run, name: str) -> Panel:
    by_method: dict[str, list[Mapping[str, Separation]]] = {}
    for _, method, evaluation in run.evaluations:
        if found := evaluation.ood.get(name):
            by_method.setdefault(method, []).append(found.scores)
    scores = [
        *dict.fromkeys(score for of_seeds in by_method.values() for found in of_seeds for score in found)
    ]
    series = []
    for method, of_seeds in by_method.items():
        kept = [i for i, score in enumerate(scores) if all(score in found for found in of_seeds)]
        estimates = [Estimate.of([100 * found[scores[i]].auroc for found in of_seeds]) for i in kept]
        series.append(
            Series.of_estimates(method, [float(i) for i in kept], estimates, method=method, shape="marks")
        )
    ticks = [(float(i), score.replace("_", "\n")) for i, score in enumerate(scores)]
    return Panel(name, "score", "AUROC, %", series, x_ticks=ticks)
