"""Programs that no rule was written for: libraries, awkward loops, integers, sorts. The fallback is exact too."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import jax.scipy.special
import jax.scipy.stats
import numpy as np
from jax.experimental import sparse

UNUSUAL = {}


def p(fn):
    UNUSUAL[fn.__name__] = fn
    return fn


def pts(*shape, seed=0, scale=0.4):
    return jnp.asarray(scale * np.random.default_rng(seed).standard_normal(shape))


@p
def traj_in_carry():

    def f(us):
        X = jnp.zeros((11, 2)).at[0].set(jnp.array([0.3, 0.1]))

        def body(t, X):
            return X.at[t + 1].set(jnp.sin(X[t]) + us[t] * jnp.array([0.0, 1.0]))

        X = jax.lax.fori_loop(0, 10, body, X)
        return jnp.sum(X**2) + jnp.sum(X[1:] * X[:-1])

    return (f, (pts(10),))


@p
def vmap_scan():

    def f(us):

        def roll(x0):

            def st(x, u):
                return (jnp.tanh(x + u), x**2)

            return jax.lax.scan(st, x0, us)[1].sum()

        return jax.vmap(roll)(jnp.linspace(0, 1, 5)).sum() ** 2

    return (f, (pts(7),))


@p
def assoc():
    return (lambda x: jnp.sum(jax.lax.associative_scan(lambda a, b: a * b + a, x) ** 2), (pts(9),))


@p
def cumprods():
    return (
        lambda x: (
            jnp.sum(jnp.cumprod(1 + x) ** 2) + jnp.sum(jax.lax.cumlogsumexp(x)) + jnp.max(jax.lax.cummax(x))
        ),
        (pts(6),),
    )


@p
def interp():
    return (
        lambda x: jnp.sum(jnp.interp(x, jnp.arange(5.0), jnp.array([0.0, 1.0, 4.0, 9.0, 16.0])) * x),
        (pts(6) + 1.3,),
    )


@p
def polyval():
    return (lambda x: jnp.sum(jnp.polyval(x[:3], x[3:]) ** 2), (pts(8),))


@p
def einsum():
    return (lambda x: jnp.einsum("ij,jk,ik->", x, x.T, jnp.sin(x @ x.T)), (pts(3, 4),))


@p
def expm():
    return (lambda x: jnp.sum(jax.scipy.linalg.expm(x.reshape(2, 2)) ** 2), (pts(4),))


@p
def chol():

    def f(x):
        A = jnp.eye(3) * 2 + jnp.outer(x, x)
        L = jnp.linalg.cholesky(A)
        return jnp.sum(jnp.log(jnp.diag(L))) + jnp.sum(
            jax.scipy.linalg.solve_triangular(L, x, lower=True) ** 2
        )

    return (f, (pts(3),))


@p
def eigh():
    return (
        lambda x: jnp.sum(jnp.linalg.eigh(jnp.diag(jnp.arange(3.0)) + jnp.outer(x, x))[0] ** 3),
        (pts(3),),
    )


@p
def norm_where():
    return (
        lambda x: (
            jnp.linalg.norm(x) + jnp.sum(jnp.where(jnp.abs(x) > 0.2, jnp.sqrt(jnp.abs(x)), x**2)) + jnp.var(x)
        ),
        (pts(8),),
    )


@p
def softmax_ce():
    W = pts(5, 3, seed=3)

    def f(t):
        logits = t["w"] @ W.T + t["b"][:, None]
        return (
            -jnp.mean(jax.nn.log_softmax(logits, 0)[0])
            + jnp.sum(jax.nn.gelu(t["w"]))
            + jnp.sum(jax.nn.silu(t["b"]))
        )

    return (f, ({"w": pts(4, 3), "b": pts(4)},))


@p
def switch():

    def f(x):
        i = jnp.clip((x[0] * 10).astype(int), 0, 2)
        return jax.lax.switch(
            i, [lambda v: v.sum() ** 2, lambda v: jnp.prod(v), lambda v: jnp.sin(v).sum()], x
        ) + jnp.sum(x**2)

    return (f, (pts(4),))


@p
def int_carry():

    def f(x):

        def st(c, u):
            s, n = c
            n = n + (u > 0).astype(jnp.int32)
            return ((jnp.sin(s) + u * n, n), s**2)

        (s, n), y = jax.lax.scan(st, (0.2, 0), x)
        return y.sum() + s * n

    return (f, (pts(7),))


@p
def custom_root():

    def f(x):
        def g(y):
            return y**3 + y - jnp.sum(x**2)

        r = jax.lax.custom_root(
            g,
            0.5,
            lambda g, y0: jax.lax.fori_loop(0, 30, lambda i, y: y - g(y) / jax.grad(g)(y), y0),
            lambda g, y: y / g(1.0),
        )
        return r**2 + jnp.sum(x)

    return (f, (pts(4),))


@p
def while_const():

    def f(x):
        n = jax.lax.while_loop(lambda s: s < 100.0, lambda s: s * 2.0, 1.0)
        return jnp.sum(x**3) * n

    return (f, (pts(4),))


@p
def matvec_scan_big():
    A = np.eye(20) * 0.9 + np.diag(np.ones(19) * 0.05, 1)

    def f(us):

        def st(x, u):
            x = jnp.asarray(A) @ jnp.tanh(x) + u
            return (x, jnp.sum(x**2))

        x, c = jax.lax.scan(st, jnp.ones(20) * 0.1, us)
        return c.sum() + jnp.sum(x**4)

    return (f, (pts(6, 20),))


@p
def scan_ys_gather():

    def f(us):

        def st(x, u):
            x = jnp.sin(x) + u
            return (x, x)

        _, xs = jax.lax.scan(st, 0.3, us)
        return jnp.sum((xs[::2] - xs[1::2]) ** 2) + jnp.sum(jnp.exp(xs[jnp.array([0, 3, 5])] * us[:3]))

    return (f, (pts(8),))


@p
def carry_vector_const_part():

    def f(us):

        def st(s, u):
            return (jnp.stack([jnp.sin(s[0]) + u, s[1] * 0.5, 1.0 * s[2]]), s[0] * s[1] ** 2 + s[2] * u**2)

        s, c = jax.lax.scan(st, jnp.array([0.1, 2.0, 3.0]), us)
        return c.sum() + s @ s

    return (f, (pts(9),))


@p
def carry_is_input():

    def f(t):
        x0, us = t

        def st(x, u):
            return (x[::-1] * jnp.cos(u) + u, jnp.prod(x))

        x, c = jax.lax.scan(st, x0, us)
        return c.sum() + x @ x0

    return (f, ((pts(3), pts(6, seed=1)),))


@p
def unrolled_gd():

    def f(x):

        def g(y):
            return jnp.sum((y**2 - 1) ** 2) + y[0] * y[1]

        y = x
        for _ in range(8):
            y = y - 0.05 * jax.grad(g)(y)
        return g(y) + jnp.sum(x**2)

    return (f, (pts(4),))


@p
def grad_of_scan_inside():

    def f(us):

        def roll(us):

            def st(x, u):
                return (jnp.sin(x) + u, x**2 * u)

            return jax.lax.scan(st, 0.3, us)[1].sum()

        return jnp.sum(jax.grad(roll)(us) ** 2) + roll(us)

    return (f, (pts(7),))


@p
def scan_reverse_nested_rev():

    def f(x):

        def o(c, r):

            def i(d, v):
                return (d * 0.5 + jnp.sin(v) * c, d * v)

            d, ys = jax.lax.scan(i, c, r, reverse=True)
            return (d, jnp.sum(ys * jnp.arange(3.0)))

        c, ys = jax.lax.scan(o, x[0, 0], x, reverse=True)
        return c**2 + jnp.sum(ys**2)

    return (f, (pts(4, 3),))


@p
def long_nested_lift():

    def f(x):

        def o(c, r):

            def i(d, v):
                return (jnp.roll(d, 1) * 0.5 + jnp.sin(v) * c, jnp.sum(d * v))

            d, ys = jax.lax.scan(i, c, r, reverse=True)
            return (d, jnp.sum(ys * jnp.arange(3.0)))

        c, ys = jax.lax.scan(o, jnp.ones(40) * x[0, 0], x, reverse=True)
        return jnp.sum(c**2) + jnp.sum(ys**2)

    return (f, (pts(4, 3),))


@p
def sparse_bcoo():
    A = sparse.BCOO.fromdense(np.diag(np.arange(1.0, 6)))
    return (lambda x: jnp.sum(jnp.sin(A @ x) ** 2), (pts(5),))


@p
def float_of_int_idx():
    return (lambda x: jnp.sum(x[jnp.argsort(x)] ** 2 * jnp.arange(5.0)) + jnp.median(x) ** 2, (pts(5),))


@p
def betas():
    return (
        lambda x: (
            jnp.sum(jax.scipy.special.gammaln(x + 2))
            + jnp.sum(jax.scipy.stats.norm.logpdf(x, 0.3, 1.2))
            + jnp.sum(jax.scipy.special.xlogy(x**2, x**2 + 1))
        ),
        (pts(4),),
    )


@p
def cross_prod():
    return (
        lambda x: (
            jnp.sum(jnp.cross(x[:3], x[3:]) ** 2)
            + jnp.sum(jnp.kron(x[:2], x[2:4]))
            + jnp.trace(jnp.outer(x, x))
        ),
        (pts(6),),
    )


@p
def reduce_window():
    return (
        lambda x: jnp.sum(jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2,), (1,), "VALID") * x[1:]),
        (pts(6),),
    )


@p
def scan_with_dict_and_none():

    def f(t):

        def st(c, u):
            return ({"a": c["a"] * 0.9 + u["v"], "b": (c["b"][0] + 1, None)}, None)

        c, _ = jax.lax.scan(st, {"a": jnp.array([0.1, 0.2]), "b": (0, None)}, {"v": t})
        return jnp.sum(c["a"] ** 2) * c["b"][0]

    return (f, (pts(5, 2),))


@p
def rounding_ste():
    return (lambda x: jnp.sum((x + jax.lax.stop_gradient(jnp.round(x * 4) / 4 - x)) ** 2 * x), (pts(5),))


@p
def mean_field():
    return (lambda x: jnp.sum((x - jnp.mean(x)) ** 4) + jnp.std(x), (pts(50),))
