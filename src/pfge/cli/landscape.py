"""`pfge landscape`: draw the loss on the plane through three members."""

import argparse

from pfge.cli.arguments import add_run_arguments, given_settings

HELP = "draw the loss on the plane through three members"
DESCRIPTION = """
Measure the loss on a grid on the plane through three members of PFGE, with BatchNorm refreshed at each
point, and draw it with w0, the trajectory, SWA, the members and the curves of pfge connect. Points off the
plane are projected onto it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--members",
        type=int,
        nargs=3,
        default=[1, 2, 3],
        metavar="N",
        help="numbers of the three members, counted from 1",
    )
    parser.add_argument(
        "--quantity",
        choices=("train_loss", "train_error", "test_error"),
        default="train_loss",
        help="what to draw",
    )
    parser.add_argument("--grid", type=int, default=11, help="points on each side (default: 11)")
    parser.add_argument(
        "--images", type=int, default=2000, help="images to measure each point on (default: 2000)"
    )
    parser.add_argument("--seed", type=int, help="seed of the run (default: its first)")
    add_run_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Measure the grid, and write it and its figure."""
    from pfge.lab.experiments.landscape import make_landscape
    from pfge.lab.run.progress import Reporter
    from pfge.reports.figures.landscape import draw_landscape
    from pfge.storage.files import write_json, write_text

    found = make_landscape(
        options.folder,
        Reporter(),
        members=options.members,
        quantity=options.quantity,
        grid=options.grid,
        images=options.images,
        seed=options.seed,
        overrides=given_settings(options),
        trust_code=options.trust_code,
    )
    write_json(options.folder / "landscape.json", found.to_json())
    figure = options.folder / "landscape.svg"
    write_text(figure, draw_landscape(found))
    print(f"Figure: {figure}")
    return 0
