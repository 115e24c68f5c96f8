"""How rare tests are divided into parts."""

import pytest

from helpers.samples import outside_of_part


class Item:
    """A collected test, with only what the division into parts needs."""

    def __init__(self, is_rare):
        self.is_rare = is_rare

    def get_closest_marker(self, name):
        return name if name == "rare" and self.is_rare else None


@pytest.mark.parametrize("parts", [2, 3])
def test_each_rare_test_is_in_one_part_and_every_other_test_in_all(parts):
    items = [Item(is_rare=number % 3 > 0) for number in range(30)]
    left_out = [outside_of_part(items, number, parts) for number in range(parts)]
    for item in items:
        assert sum(item in each for each in left_out) == (parts - 1 if item.is_rare else 0)
