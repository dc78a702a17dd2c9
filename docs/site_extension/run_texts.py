"""What docs/results.md shows of a recorded run: tables, where they come from, and their verdicts in words."""

from collections.abc import Mapping

from pfge.methods import find_reference
from pfge.reports.contents import comparison_tables
from pfge.reports.run import Run
from pfge.reports.tables.diagnosis import connectivity_tables
from pfge.reports.tables.ensembles import formats_table
from pfge.reports.tables.methods import differences_table
from pfge.reports.tables.table import to_markdown
from pfge.reports.verdicts import Gap, find_gaps
from pfge.storage.files import read_json_object

AS_PREDICTED, AT_TEMPERATURE = "test", "test.calibrated"
PARTS = {"train": "training", "validation": "validation", "test": "test"}
VERDICTS = ("better", "equal", "worse", "undecided")


def texts_of(run: Run) -> dict[str, str]:
    """Return everything that there is of a run, as Markdown, by a short name."""
    tables = comparison_tables(run.folder, run.results, margins=run.margins)
    texts = {"source": source_of(run)} | {table.key: to_markdown(table) for table in tables}
    reference = find_reference().name
    for key, part in (("differences", AS_PREDICTED), ("differences-at-T", AT_TEMPERATURE)):
        gaps = find_gaps(run.folder, run.results, reference, part=part, margins=run.margins)
        if table := differences_table(gaps, reference):
            texts[key] = f"{to_markdown(table)}\n\n{in_words(gaps, reference)}"
    if run.formats:
        texts["formats"] = to_markdown(formats_table(run.formats))
    if run.connectivity:
        curves = connectivity_tables(run.connectivity)
        texts["connectivity"] = "\n\n".join(
            f"{table.title.capitalize()}:\n\n{to_markdown(table)}" for table in curves
        )
    return texts


def source_of(run: Run) -> str:
    """Return on what, how often, for how long, where and by which command a run was made."""
    found = run.environment
    parts = read_json_object(run.folder.data)
    data = ", ".join(f"{parts[part]['count']:,} {name}" for part, name in PARTS.items() if part in parts)
    setting = run.setting
    length = f"n = {setting.iterations:,}, P = {setting.period:,}, c = {setting.cycle:,}. " if setting else ""
    seeds = f"Seed{'s' * (len(run.seeds) > 1)} {', '.join(map(str, run.seeds))}"
    devices = ", ".join(found["accelerators"]) or f"{found['threads']} of {found['cores']} cores"
    return (
        f"{data} examples. {seeds}. {length}All numbers are of the test examples. "
        f"Made on {found['started'][:10]} with Python {found['python']}, torch {found['torch']}, "
        f"{found['processor']}, {devices}, by\n\n```text\n{found['command']}\n```"
    )


def in_words(gaps: Mapping[str, Mapping[str, Gap]], reference: str) -> str:
    """Return which methods are better, equal, worse and undecided, in each metric."""
    metrics = {gap.metric.name: gap.metric for found in gaps.values() for gap in found.values()}
    lines = []
    for metric in metrics.values():
        verdicts = {name: found[metric.name].verdict for name, found in gaps.items() if metric.name in found}
        groups = {said: [name for name in verdicts if verdicts[name] == said] for said in VERDICTS}
        words = "; ".join(f"{said}: {', '.join(names)}" for said, names in groups.items() if names)
        if len(set(verdicts.values())) == 1:
            words = f"{next(iter(verdicts.values()))}: all"
        lines.append(f"- {metric.label}, compared with {reference}: {words}.".replace("*", "\\*"))
    return "\n".join(lines)
