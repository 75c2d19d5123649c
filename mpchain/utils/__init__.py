"""Small tools that several packages need."""

import importlib
from typing import Any

from mpchain.from_pytorch import module_getattr
from mpchain.utils.arrays import force_array as force_array
from mpchain.utils.arrays import force_type as force_type
from mpchain.utils.arrays import size_of_shape as size_of_shape
from mpchain.utils.arrays import sum_to as sum_to
from mpchain.utils.conv import get_conv_outsize as get_conv_outsize
from mpchain.utils.conv import get_deconv_outsize as get_deconv_outsize
from mpchain.utils.notices import enable_final as enable_final
from mpchain.utils.notices import experimental as experimental
from mpchain.utils.notices import final as final
from mpchain.utils.notices import nondeterministic as nondeterministic
from mpchain.utils.notices import tempdir as tempdir
from mpchain.utils.walker_alias import WalkerAlias as WalkerAlias

_SPARSE = ("CooMatrix", "get_order", "to_coo")
_raise_attribute_error = module_getattr(__name__)


def __getattr__(name: str) -> Any:
    # The module sparse is imported when it is used: it imports Variables, which import other
    # modules of this package.
    if name in _SPARSE:
        return getattr(importlib.import_module("mpchain.utils.sparse"), name)
    return _raise_attribute_error(name)
