"""Tables of a study's page, in Markdown, and the page itself."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev

from scipy.stats import t as student

from studies.rates import by_seed, chosen_rate, rate_folder, validation_nlls, values

BEGIN, END = "<!-- results -->", "<!-- end of results -->"
RIVALS = ("SWA", "FGE")
NOT_RUN = "not run"
QUALITY_HEADS = ("accuracy %", "NLL", "NLL at T", "ECE %", "ECE % at T")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; columns of numbers are to the right."""
    kept = list(rows)
    sides = ["---:" if all(map(_is_number, cells)) else "---" for cells in zip(*kept, strict=True)]
    lines = [heads, sides, *kept]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _is_number(cell: str) -> bool:
    return cell in ("", NOT_RUN) or cell.strip("*+-")[:1].isdigit()


def mean_and_error(numbers: Sequence[float], digits: int, factor: float = 1.0) -> str:
    """Return the mean and its standard error, or the number where there is one."""
    if not numbers:
        return NOT_RUN
    mean = f"{factor * fmean(numbers):.{digits}f}"
    if len(numbers) == 1:
        return mean
    return f"{mean} ± {factor * stdev(numbers) / len(numbers) ** 0.5:.{digits}f}"


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean."""
    reach = float(student.ppf(0.975, len(differences) - 1)) * stdev(differences) / len(differences) ** 0.5
    return fmean(differences) - reach, fmean(differences) + reach


def verdict(low: float, high: float, *, lower_is_better: bool) -> str:
    if low <= 0 <= high:
        return "undecided"
    return "better" if (high < 0) == lower_is_better else "worse"


def change(numbers: Sequence[float], others: Sequence[float], digits: int = 4, factor: float = 1.0) -> str:
    """Return the mean of the differences, seed by seed, with its 95 % interval."""
    found = [factor * (a - b) for a, b in zip(numbers, others, strict=True)]
    low, high = interval(found)
    return f"{fmean(found):+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def quality(folder: Path, method: str) -> list[str]:
    """Return the cells of QUALITY_HEADS, on the test data."""

    def shown(metric: str, digits: int, factor: float, *, calibrated: bool) -> str:
        return mean_and_error(values(folder, method, metric, calibrated=calibrated), digits, factor)

    return [
        shown("accuracy", 2, 100, calibrated=False),
        shown("nll", 4, 1, calibrated=False),
        shown("nll", 4, 1, calibrated=True),
        shown("ece", 2, 100, calibrated=False),
        shown("ece", 2, 100, calibrated=True),
    ]


def differences(methods: Sequence[str], folders: dict[str, Path]) -> str:
    """Return each method minus each rival, on the test data, for the seeds that both have, at least two."""
    rows = []
    for rival in RIVALS:
        for method in (name for name in methods if name != rival):
            cells = []
            for metric, calibrated, digits, factor, lower in (
                ("nll", True, 4, 1, True),
                ("accuracy", False, 2, 100, False),
            ):
                own = by_seed(folders[method], method, metric, calibrated=calibrated)
                other = by_seed(folders[rival], rival, metric, calibrated=calibrated)
                seeds = sorted(own.keys() & other.keys())
                if len(seeds) < 2:
                    cells += [NOT_RUN, ""]
                    continue
                pairs = [own[seed] for seed in seeds], [other[seed] for seed in seeds]
                low, high = interval([a - b for a, b in zip(*pairs, strict=True)])
                cells += [change(*pairs, digits, factor), verdict(low, high, lower_is_better=lower)]
            rows.append([method, rival, *cells])
    return table(["method", "minus", "NLL at T, 95 %", "", "accuracy, points, 95 %", ""], rows)


def nll_at_rates(out: Path, what: str, methods: Sequence[str], rates: Sequence[float]) -> str:
    """Return the NLL at T of each method at each rate on the test data; that of the chosen rate is bold."""

    def cell(method: str, rate: float) -> str:
        found = mean_and_error(values(rate_folder(out, what, rate), method, "nll", calibrated=True), 4)
        return f"**{found}**" if found != NOT_RUN and rate == chosen_rate(out, method, rates) else found

    rows = ([method, *(cell(method, rate) for rate in rates)] for method in methods)
    return table(["method", *(f"{rate:g}" for rate in rates)], rows)


def validation_nll_at_rates(out: Path, methods: Sequence[str], rates: Sequence[float]) -> str:
    """Return the numbers by which the rates were chosen."""

    def cell(method: str, rate: float) -> str:
        found = validation_nlls(rate_folder(out, "choose", rate), method)
        return f"{fmean(found):.4f}" if found else NOT_RUN

    rows = ([method, *(cell(method, rate) for rate in rates)] for method in methods)
    return table(["method", *(f"{rate:g}" for rate in rates)], rows)


def write_results(page: Path, results: str) -> None:
    """Put the results between the marks of a page."""
    text = page.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n{results}\n{END}{after}", encoding="utf-8")
