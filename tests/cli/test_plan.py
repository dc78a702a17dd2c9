import pytest

from pfge.cli.main import main
from pfge.lab.data.batches import EpochOrder
from tests.cli.captured import Captured, refused
from tests.cli.every_command import PLAN


def test_what_fits_is_printed_with_where_members_are_taken(capsys: Captured) -> None:
    assert main([*PLAN, "--memory", "1MB", "--images", "1000", "--batch-size", "100"]) == 0
    printed = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if "│" in line]
    # 10 iterations an epoch: c = 20, P = 100, n = 400. The bytes are those of compress(small_bits=16).
    assert ["PFGE", "4", "20", "100", "int8 base + 3 bits", "728,028", "+5,422,720"] in rows
    assert not [row for row in rows if row[0] == "SWA" and row[4] == "float32"]  # 1,084,544 bytes
    assert "Each run has 400 iterations." in printed
    assert "PFGE 4: members at iterations 100, 200, 300, 400, at rate 0.0005" in printed
    assert "  one forward pass: SWA as int8 base, 280,932 bytes\n" in printed
    assert "  4 forward passes: PFGE as int8 base + 3 bits, 728,028 bytes\n" in printed
    of_views = (
        "  several forward passes, for images: TTA, the model of SWA on several views (docs/cifar10.md)"
    )
    assert f"{of_views}, 280,932 bytes\n" in printed


@pytest.mark.filterwarnings("always")
def test_a_remainder_is_warned_of(capsys: Captured) -> None:
    assert main([*PLAN, "--memory", "9MB", "--period", "9", "--images", "10", "--batch-size", "10"]) == 0
    told = capsys.readouterr().err
    assert "pfge: warning: a period of 9 iterations is not a multiple of the cycle of 2" in told
    assert "pfge: warning: 40 iterations are not a multiple of the period of 9" in told


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--memory", "1kB"], "memory must be at least 280,932 bytes"),
        (["--memory", "9MB", "--images", "0"], "--images must be at least the --batch-size of 128, got 0"),
        (["--memory", "9MB", "--period", "50"], "cycle <= period <= length"),
        (["--memory", "9MB", "--model", "resnet21"], "the depth must be 6n+2, got 21"),
    ],
)
def test_a_mistake_is_one_line(capsys: Captured, arguments: list[str], expected: str) -> None:
    assert expected in refused(capsys, [*PLAN, *arguments])


def test_an_epoch_has_the_iterations_that_training_gives_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, "--memory", "9MB", "--images", "50000", "--batch-size", "128"]) == 0
    order = EpochOrder(50_000, batch_size=128, seed=0)
    assert order.per_epoch == 390  # of 390.6
    epochs = int(PLAN[PLAN.index("--epochs") + 1])
    assert f"Each run has {epochs * order.per_epoch:,} iterations." in capsys.readouterr().out


def test_a_name_that_imagenet_has_too_is_explained(capsys: Captured) -> None:
    arguments = ["plan", "--classes", "10", "--epochs", "40", "--memory", "90MB", "--model"]
    note = "resnet50 is the network for CIFAR of that name; ImageNet's is torchvision:resnet50"
    assert main([*arguments, "resnet50"]) == 0
    assert note in capsys.readouterr().out.splitlines()
    assert main([*arguments, "resnet20"]) == 0
    assert "ImageNet" not in capsys.readouterr().out
