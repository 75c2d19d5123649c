"""Optimizers and their update rules."""

from mpchain import from_pytorch
from mpchain.optimizers.adam import AdaBound as AdaBound
from mpchain.optimizers.adam import Adam as Adam
from mpchain.optimizers.adam import AdamRule as AdamRule
from mpchain.optimizers.adam import AdamW as AdamW
from mpchain.optimizers.adam import AMSBound as AMSBound
from mpchain.optimizers.adam import AMSGrad as AMSGrad
from mpchain.optimizers.adam import RAdam as RAdam
from mpchain.optimizers.adam import RAdamRule as RAdamRule
from mpchain.optimizers.adaptive import MSVAG as MSVAG
from mpchain.optimizers.adaptive import SMORMS3 as SMORMS3
from mpchain.optimizers.adaptive import AdaDelta as AdaDelta
from mpchain.optimizers.adaptive import AdaDeltaRule as AdaDeltaRule
from mpchain.optimizers.adaptive import AdaGrad as AdaGrad
from mpchain.optimizers.adaptive import AdaGradRule as AdaGradRule
from mpchain.optimizers.adaptive import MSVAGRule as MSVAGRule
from mpchain.optimizers.adaptive import RMSprop as RMSprop
from mpchain.optimizers.adaptive import RMSpropGraves as RMSpropGraves
from mpchain.optimizers.adaptive import RMSpropGravesRule as RMSpropGravesRule
from mpchain.optimizers.adaptive import RMSpropRule as RMSpropRule
from mpchain.optimizers.adaptive import SMORMS3Rule as SMORMS3Rule
from mpchain.optimizers.layerwise import LAMB as LAMB
from mpchain.optimizers.layerwise import Adafactor as Adafactor
from mpchain.optimizers.layerwise import AdafactorRule as AdafactorRule
from mpchain.optimizers.layerwise import LAMBRule as LAMBRule
from mpchain.optimizers.lbfgs import LBFGS as LBFGS
from mpchain.optimizers.sgd import SGD as SGD
from mpchain.optimizers.sgd import SGDW as SGDW
from mpchain.optimizers.sgd import CorrectedMomentumSGD as CorrectedMomentumSGD
from mpchain.optimizers.sgd import CorrectedMomentumSGDRule as CorrectedMomentumSGDRule
from mpchain.optimizers.sgd import Lion as Lion
from mpchain.optimizers.sgd import LionRule as LionRule
from mpchain.optimizers.sgd import MomentumSGD as MomentumSGD
from mpchain.optimizers.sgd import MomentumSGDRule as MomentumSGDRule
from mpchain.optimizers.sgd import NesterovAG as NesterovAG
from mpchain.optimizers.sgd import NesterovAGRule as NesterovAGRule
from mpchain.optimizers.sgd import SGDRule as SGDRule
from mpchain.optimizers.sgd import SGDWRule as SGDWRule

# Type checkers do not see this ``__getattr__``: with it, they would assume that the module has
# every name.
globals()["__getattr__"] = from_pytorch.module_getattr(__name__)
