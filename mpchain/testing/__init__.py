"""Tools for tests of functions, links and training code, to be used with pytest or unittest."""

from mpchain.gradient_check import assert_allclose as assert_allclose
from mpchain.testing import attr as attr
from mpchain.testing import condition as condition
from mpchain.testing.backend import BackendConfig as BackendConfig
from mpchain.testing.backend import inject_backend_tests as inject_backend_tests
from mpchain.testing.distribution import distribution_unittest as distribution_unittest
from mpchain.testing.function_link import FunctionTestCase as FunctionTestCase
from mpchain.testing.function_link import FunctionTestError as FunctionTestError
from mpchain.testing.function_link import InitializerArgument as InitializerArgument
from mpchain.testing.function_link import LinkInitializersTestCase as LinkInitializersTestCase
from mpchain.testing.function_link import LinkTestCase as LinkTestCase
from mpchain.testing.function_link import LinkTestError as LinkTestError
from mpchain.testing.helper import assert_warns as assert_warns
from mpchain.testing.helper import generate_matrix as generate_matrix
from mpchain.testing.helper import get_trainer_with_mock_updater as get_trainer_with_mock_updater
from mpchain.testing.helper import patch as patch
from mpchain.testing.helper import run_module as run_module
from mpchain.testing.helper import save_and_load as save_and_load
from mpchain.testing.helper import save_and_load_hdf5 as save_and_load_hdf5
from mpchain.testing.helper import save_and_load_npz as save_and_load_npz
from mpchain.testing.helper import with_requires as with_requires
from mpchain.testing.helper import without_requires as without_requires
from mpchain.testing.parameterized import from_pytest_parameterize as from_pytest_parameterize
from mpchain.testing.parameterized import parameterize as parameterize
from mpchain.testing.parameterized import parameterize_pytest as parameterize_pytest
from mpchain.testing.parameterized import product as product
from mpchain.testing.parameterized import product_dict as product_dict
from mpchain.testing.random import fix_random as fix_random
from mpchain.testing.random import generate_seed as generate_seed
from mpchain.testing.unary_math_function import (
    unary_math_function_unittest as unary_math_function_unittest,
)
