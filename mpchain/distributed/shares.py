"""Dividing things among ranks, or into parts."""


def part_of(n, index, n_parts):
    """Returns the range of one of the parts into which ``n`` things are divided: the first have one
    more, where the number does not divide them."""
    quotient, remainder = divmod(n, n_parts)
    begin = index * quotient + min(index, remainder)
    return begin, begin + quotient + (index < remainder)
