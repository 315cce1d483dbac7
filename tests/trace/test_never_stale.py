"""A call means what jax.grad means: whatever f sees, and however that changed, the structure is that of now."""

import collections
import dataclasses
import functools
import operator
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.graph import evaluate
from gnewt.trace import trace_function

X = np.array([0.3, -0.7, 1.1])


def energy(x, a, b=1.0):
    """What most of these functions compute: a and b come from somewhere."""
    return jnp.sum(jnp.asarray(a) * x**2) + b * jnp.sum(jnp.cos(x))


class Base:
    rate = 2.0

    def scaled(self, x):
        return 3.0 * x


class Derived(Base):
    def __call__(self, x):
        return energy(self.scaled(x), self.rate)


class Param:
    """A weight that is set in place, as in flax.nnx."""

    def __init__(self, value):
        self.value = value

    def __getattr__(self, name):
        return getattr(self.value, name)


class Slotted:
    __slots__ = ("weight",)

    def __init__(self, weight):
        self.weight = weight


class Layer:
    def __init__(self):
        self.kernel = Param(jnp.ones(3))

    def __call__(self, x):
        return energy(x, self.kernel.value)


class Named(dict):
    __getattr__ = dict.__getitem__


class Items(list):
    pass


GLOBAL = {"slope": 1.0, "array": np.ones(3)}


@jax.custom_jvp
def sloped(x):
    return jnp.sin(x)


@sloped.defjvp
def _sloped_rule(primals, tangents):
    (x,), (t,) = primals, tangents
    return sloped(x), GLOBAL["slope"] * jnp.cos(x) * t


@jax.custom_jvp
def weighted(x):
    return jnp.sin(x)


@weighted.defjvp
def _weighted_rule(primals, tangents):
    (x,), (t,) = primals, tangents
    return weighted(x), jnp.asarray(GLOBAL["array"]) * jnp.cos(x) * t


@jax.custom_vjp
def backward(x):
    return jnp.sum(jnp.sin(x))


backward.defvjp(lambda x: (backward(x), x), lambda x, cotangent: (GLOBAL["slope"] * cotangent * jnp.cos(x),))


def of_base_attribute():
    model, old = Derived(), Base.rate
    return model, lambda: setattr(Base, "rate", 5.0), lambda: setattr(Base, "rate", old)


def of_base_method():
    old = Base.scaled
    return (
        Derived(),
        lambda: setattr(Base, "scaled", lambda self, x: jnp.tanh(x)),
        lambda: setattr(Base, "scaled", old),
    )


def of_weight_in_place():
    layer = Layer()
    return layer, lambda: setattr(layer.kernel, "value", 4 * jnp.ones(3))


def of_bound_method():
    layer = Layer()
    return layer.__call__, lambda: setattr(layer, "kernel", Param(jnp.arange(3.0)))


def of_function_attribute():
    def f(x):
        return energy(x, f.weight)

    f.weight = 1.0
    return f, lambda: setattr(f, "weight", 7.0)


def of_dict_subclass():
    settings = Named(weight=np.ones(3))
    return lambda x: energy(x, settings.weight), lambda: settings.update(weight=np.arange(3.0))


def of_list_subclass():
    items = Items([1.0, 2.0])
    return lambda x: energy(x, *items), lambda: items.__setitem__(1, -2.0)


def of_default_dict():
    table = collections.defaultdict(lambda: 1.0)
    return lambda x: energy(x, table["w"]), lambda: table.__setitem__("w", 3.0)


def of_bound_builtin():
    table = {"w": 1.0}
    get = table.get
    return lambda x: energy(x, get("w")), lambda: table.update(w=3.0)


def of_itemgetter():
    table = {"w": np.ones(3)}
    get = operator.itemgetter("w")
    return lambda x: energy(x, get(table)), lambda: table.update(w=np.arange(3.0))


def of_partial():
    weight = np.ones(3)
    return functools.partial(lambda w, x: energy(x, w), weight), lambda: weight.__setitem__(1, 9.0)


def of_partial_of_object():
    box = Slotted(1.0)
    return functools.partial(lambda w, x: energy(x, w.weight), box), lambda: setattr(box, "weight", 3.0)


def of_jvp_rule():
    return (
        lambda x: jnp.sum(sloped(x)) + jnp.sum(x**2),
        lambda: GLOBAL.update(slope=2.0),
        lambda: GLOBAL.update(slope=1.0),
    )


def of_jvp_rule_array():
    return (
        lambda x: jnp.sum(weighted(x)) + jnp.sum(x**2),
        lambda: GLOBAL["array"].__setitem__(0, 4.0),
        lambda: GLOBAL["array"].__setitem__(0, 1.0),
    )


def of_vjp_rule():
    return (
        lambda x: backward(x) + jnp.sum(x**2),
        lambda: GLOBAL.update(slope=2.0),
        lambda: GLOBAL.update(slope=1.0),
    )


def of_module():
    module = types.ModuleType("gnewt_test_settings")
    module.weight = 1.0
    sys.modules["gnewt_test_settings"] = module

    def f(x):
        import gnewt_test_settings  # type: ignore[import-not-found]

        return energy(x, gnewt_test_settings.weight)

    return f, lambda: setattr(module, "weight", 6.0), lambda: sys.modules.pop("gnewt_test_settings")


def of_closure():
    weight = 1.0

    def f(x):
        return energy(x, weight)

    def change():
        nonlocal weight
        weight = 8.0

    return f, change


def of_defaults():
    def f(x, w=1.0):
        return energy(x, w)

    return f, lambda: setattr(f, "__defaults__", (4.0,))


def of_keyword_defaults():
    def f(x, *, w=1.0):
        return energy(x, w)

    return f, lambda: f.__kwdefaults__.update(w=4.0)


def of_code():
    def f(x):
        return energy(x, 1.0)

    return f, lambda: setattr(f, "__code__", (lambda x: energy(x, 5.0)).__code__)


def of_array_in_place():
    weight = np.ones(3)
    return lambda x: energy(x, weight), lambda: weight.__setitem__(2, -3.0)


def of_negative_zero():
    box = {"zero": 0.0}
    return (
        lambda x: jnp.sum(x**2) + jnp.sum(jnp.arctan2(box["zero"] * x[:1] ** 2, x - 2.0) * x),
        lambda: box.update(zero=-0.0),
    )


def of_nested_container():
    box = [{"a": (1.0, [2.0, {"b": 3.0}])}]
    return lambda x: energy(x, box[0]["a"][1][1]["b"]), lambda: box[0]["a"][1][1].update(b=4.0)


def of_property():
    class Model:
        @property
        def weight(self):
            return 1.0

    model = Model()
    return lambda x: energy(x, model.weight), lambda: setattr(Model, "weight", property(lambda self: 2.0))


def of_dataclass():
    @dataclasses.dataclass
    class Settings:
        weight: float = 1.0

    settings = Settings()
    return lambda x: energy(x, settings.weight), lambda: setattr(settings, "weight", 2.0)


def of_control_flow():
    box = {"deep": False}
    return (
        lambda x: energy(jnp.sin(x) if box["deep"] else x, 1.0),
        lambda: box.update(deep=True),
    )


def of_iterator():
    weights = iter([1.0, 2.0, 3.0, 4.0])
    now = [next(weights)]
    return lambda x: energy(x, now[0]), lambda: now.__setitem__(0, next(weights))


def of_class_variable_of_closure():
    class Config:
        weight = np.ones(3)

    return lambda x: energy(x, Config.weight), lambda: setattr(Config, "weight", np.arange(3.0))


def of_vmapped_lane():
    box = {"w": np.ones(3)}
    return (
        lambda x: jnp.sum(jax.vmap(lambda u, w: w * jnp.exp(u) + u**2)(x, jnp.asarray(box["w"]))),
        lambda: box.update(w=np.arange(1.0, 4.0)),
    )


def of_relu():
    box = {"w": np.ones(3)}
    return (
        lambda x: jnp.sum(jax.nn.relu(box["w"] * x) ** 2 + x**2),
        lambda: box.update(w=np.arange(1.0, 4.0)),
    )


WAYS = {name[3:]: make for name, make in list(globals().items()) if name.startswith("of_")}
assert len(WAYS) >= 28


def derivatives(function):
    return jax.jit(jax.value_and_grad(function))


@pytest.mark.parametrize("way", WAYS)
def test_what_f_sees_now_counts(way):
    f, change, *undo = WAYS[way]()

    def compare():
        found = trace_function(f).find((X,))
        ours = derivatives(lambda x: evaluate(found.structure, found.structure.maps, found.data, x)[0])(X)
        true = jax.value_and_grad(lambda x: f(x))(X)
        for a, b in zip(ours, true, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-14)
        return true

    try:
        before = compare()
        for _ in range(2):  # from the third call on a program is recognised, not read
            trace_function(f).find((X,))
        change()
        after = compare()
        assert any(not np.allclose(a, b) for a, b in zip(before, after, strict=True))
    finally:
        for restore in undo:
            restore()


def test_the_eager_step_is_the_new_one():
    model = Layer()
    step = gnewt.newton_step(lambda x: model(x) + jnp.sum(sloped(x)))
    dense = jax.jit(lambda g, h: -jnp.linalg.solve(h, g))

    def compare():
        def f(x):
            return model(x) + jnp.sum(sloped(x))

        for _ in range(3):
            found = step(X)
        np.testing.assert_allclose(found, dense(jax.grad(f)(X), jax.hessian(f)(X)), rtol=1e-10)

    compare()
    model.kernel.value = 4 * jnp.ones(3)
    compare()
    try:
        GLOBAL["slope"] = 1.5
        compare()
    finally:
        GLOBAL["slope"] = 1.0
