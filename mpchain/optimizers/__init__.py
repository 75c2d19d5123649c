"""Optimizers and their update rules: the family file a name is imported from says which kind."""

from mpchain.optimizers.adam import (
    AdaBound,
    Adam,
    AdamRule,
    AdamW,
    AMSBound,
    AMSGrad,
    RAdam,
    RAdamRule,
)
from mpchain.optimizers.adaptive import (
    MSVAG,
    SMORMS3,
    AdaDelta,
    AdaDeltaRule,
    AdaGrad,
    AdaGradRule,
    MSVAGRule,
    RMSprop,
    RMSpropGraves,
    RMSpropGravesRule,
    RMSpropRule,
    SMORMS3Rule,
)
from mpchain.optimizers.layerwise import LAMB, Adafactor, AdafactorRule, LAMBRule
from mpchain.optimizers.sgd import (
    SGD,
    SGDW,
    CorrectedMomentumSGD,
    CorrectedMomentumSGDRule,
    Lion,
    LionRule,
    MomentumSGD,
    MomentumSGDRule,
    NesterovAG,
    NesterovAGRule,
    SGDRule,
    SGDWRule,
)

__all__ = [name for name in dir() if name[0].isupper()]
