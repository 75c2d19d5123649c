"""Computes the terms of a variational autoencoder's loss with distributions."""

import chainer
import chainer.distributions as D
import chainer.functions as F
import numpy as np

rng = np.random.RandomState(0)
mu = chainer.Variable(rng.standard_normal((3, 2)).astype("f"))
ln_var = chainer.Variable(rng.standard_normal((3, 2)).astype("f"))
q = D.Normal(loc=mu, log_scale=ln_var * 0.5)
p = D.Normal(loc=np.zeros((3, 2), "f"), scale=np.ones((3, 2), "f"))
kl = F.sum(chainer.kl_divergence(q, p))
same = F.gaussian_kl_divergence(mu, ln_var)
bernoulli = D.Bernoulli(logit=mu)
kl.backward()
likelihood = bernoulli.log_prob(np.array([[0, 1], [1, 1], [0, 0]], "i"))
print(
    kl.data,
    same.data,
    mu.grad.sum(),
    F.sum(likelihood).data,
    F.sum(q.entropy).data,
    q.cdf(0.1).data.sum(),
)
