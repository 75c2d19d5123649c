"""Batches of probability distributions, which are differentiable with respect to points and
parameters."""

from mpchain.distributions.discrete import (
    Bernoulli,
    Categorical,
    Geometric,
    OneHotCategorical,
    Poisson,
)
from mpchain.distributions.distribution import Distribution
from mpchain.distributions.kl import cross_entropy, kl_divergence, register_kl
from mpchain.distributions.location_scale import Cauchy, Gumbel, Laplace, LogNormal, Normal, Uniform
from mpchain.distributions.multivariate import Beta, Dirichlet, Independent, MultivariateNormal
from mpchain.distributions.positive import Chisquare, Exponential, Gamma, Pareto
