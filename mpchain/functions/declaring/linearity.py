"""The names of the functions that are linear in their arguments."""

LINEAR = frozenset(
    """
    cast reshape transpose broadcast_to sum_to cumsum sum mean scatter_item get_item take place
    take_along put_along map_axis copy flip sum_windows spread_windows take_from_windows
    place_in_windows unfold_windows fold_windows shift drop with_contiguous_gradient take_rows
    add_rows rotate neighbors map_boxes spread_boxes split concat separate stack cut_sequences
    transpose_sequence transform split_gates join_gates scatter_add add_dropped add_and_order
    """.split()
)
"""The names of functions that are linear in all inputs together, elementwise ones excepted."""

PRODUCTS = frozenset(
    """
    matrix_product contract linear convolution_output convolution_input convolution_filter
    sums_of_rows products_of_rows
    """.split()
)
"""The names of functions that are linear in each of two inputs, elementwise ones excepted."""
