"""Initial values of parameters."""

from mpchain.initializers.constant import Constant as Constant
from mpchain.initializers.constant import Identity as Identity
from mpchain.initializers.constant import NaN as NaN
from mpchain.initializers.constant import One as One
from mpchain.initializers.constant import Zero as Zero
from mpchain.initializers.generation import generate_array as generate_array
from mpchain.initializers.generation import get_initializer as get_initializer
from mpchain.initializers.initializer import Initializer as Initializer
from mpchain.initializers.initializer import get_fans as get_fans
from mpchain.initializers.orthogonal import Orthogonal as Orthogonal
from mpchain.initializers.random import GlorotNormal as GlorotNormal
from mpchain.initializers.random import GlorotUniform as GlorotUniform
from mpchain.initializers.random import HeNormal as HeNormal
from mpchain.initializers.random import HeUniform as HeUniform
from mpchain.initializers.random import LeCunNormal as LeCunNormal
from mpchain.initializers.random import LeCunUniform as LeCunUniform
from mpchain.initializers.random import Normal as Normal
from mpchain.initializers.random import Uniform as Uniform
from mpchain.initializers.sampling import DownsamplingConvFilter as DownsamplingConvFilter
from mpchain.initializers.sampling import UpsamplingDeconvFilter as UpsamplingDeconvFilter
