"""Tools for tests of functions, links and training code, to be used with pytest or unittest."""

from mpchain.gradient_check import assert_allclose
from mpchain.testing import attr, condition
from mpchain.testing.backend import BackendConfig, inject_backend_tests
from mpchain.testing.distribution import distribution_unittest
from mpchain.testing.function_link import (
    FunctionTestCase,
    FunctionTestError,
    InitializerArgument,
    LinkInitializersTestCase,
    LinkTestCase,
    LinkTestError,
)
from mpchain.testing.helper import (
    assert_warns,
    generate_matrix,
    patch,
    run_module,
    with_requires,
    without_requires,
)
from mpchain.testing.parameterized import (
    from_pytest_parameterize,
    parameterize,
    parameterize_pytest,
    product,
    product_dict,
)
from mpchain.testing.random import fix_random, generate_seed
from mpchain.testing.serializer import save_and_load, save_and_load_hdf5, save_and_load_npz
from mpchain.testing.training import get_trainer_with_mock_updater
from mpchain.testing.unary_math_function import unary_math_function_unittest
