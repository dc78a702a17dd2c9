"""How a metric is shown."""

from pfge.tasks import Metric


def test_a_share_is_shown_in_percent_and_says_so_in_its_head() -> None:
    share = Metric("accuracy", "accuracy", "higher", len, "%", 2)
    assert (share.head, share.factor) == ("accuracy %", 100.0)


def test_a_number_without_a_unit_is_shown_as_it_is() -> None:
    number = Metric("nll", "NLL", "lower", len)
    assert (number.head, number.factor, number.digits) == ("NLL", 1.0, 4)
