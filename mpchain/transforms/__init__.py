"""Transformations of functions, which compute products with Jacobians and Hessians, to every
order."""

from mpchain.transforms.derivatives import ggn as ggn
from mpchain.transforms.derivatives import grad as grad
from mpchain.transforms.derivatives import hessian as hessian
from mpchain.transforms.derivatives import hvp as hvp
from mpchain.transforms.derivatives import jacobian as jacobian
from mpchain.transforms.derivatives import jvp as jvp
from mpchain.transforms.derivatives import linearize as linearize
from mpchain.transforms.derivatives import value_and_grad as value_and_grad
from mpchain.transforms.derivatives import vjp as vjp
from mpchain.transforms.parameters import functional_call as functional_call
from mpchain.transforms.parameters import parameters as parameters
from mpchain.transforms.parameters import ravel as ravel
