import torch

from pfge.lab.data.seeding import generator


def first_numbers(*arguments: int | str) -> tuple[int, ...]:
    seed, purpose, *numbers = arguments
    return tuple(torch.randint(2**31, (4,), generator=generator(seed, purpose, *numbers)).tolist())


def test_equal_arguments_give_equal_streams():
    assert first_numbers(3, "order", 7) == first_numbers(3, "order", 7)


def test_seed_purpose_and_number_each_give_another_stream():
    streams = {first_numbers(s, p, n) for s in range(4) for p in ("order", "split") for n in range(4)}
    assert len(streams) == 32


def test_numbers_are_kept_apart():
    assert first_numbers(1, "crop", 1, 23) != first_numbers(1, "crop", 12, 3)


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    first_numbers(0, "order", 1)
    assert torch.equal(torch.get_rng_state(), before)
