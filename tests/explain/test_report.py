"""gnewt.explain: the figures, where they come from, and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt


def chain(us):
    def stage(x, u):
        x = x + 0.1 * jnp.stack([x[1], u - jnp.sin(x[0])])
        return x, u**2 + x[0] ** 2

    x, costs = jax.lax.scan(stage, jnp.ones(2), us)
    return costs.sum() + x[1] ** 4


def test_figures_are_those_of_the_plan():
    report = gnewt.explain(chain, np.zeros(50))
    plan = gnewt.factorize(chain)(np.zeros(50)).plan
    assert report.num_inputs == 50
    assert report.width == plan.certificate.width <= 4
    assert 0 < report.flops < 2 * plan.certificate.flops
    assert report.bytes == plan.certificate.bytes
    assert report.num_fronts == plan.num_fronts
    assert report.order == plan.order_name
    assert report.engine in ("native", "xla")
    assert report.flops < report.dense_flops
    text = str(report)
    for part in (
        "50 inputs",
        "scan body",
        "test_report.py",
        report.order,
        report.engine,
        f"width {report.width}",
    ):
        assert part in text


def test_the_widest_front_is_named_with_its_line():
    def f(x):
        square = jnp.sum(x[:5]) ** 2 * jnp.prod(x[:5])
        return square + jnp.sum(x**2)

    report = gnewt.explain(f, np.ones(30))
    assert "x[0]" in report.widest
    assert "test_report.py" in report.widest


def test_orders_are_compared_and_a_given_one_is_named():
    report = gnewt.explain(chain, np.zeros(20))
    assert len(report.considered) > 1
    assert min(report.considered, key=lambda c: c[2])[0] == report.order
    assert gnewt.explain(chain, np.zeros(20), order="hessian").order == "hessian"
    assert gnewt.explain(chain, np.zeros(20), engine="reference").engine == "reference"


def test_opaque_parts_say_why():
    report = gnewt.explain(lambda m: jnp.linalg.slogdet(m @ m.T + jnp.eye(3))[1], np.eye(3))
    assert any("opaque" in row.note for row in report.families)
    assert "opaque" in str(report)


def test_hopeless_widths_are_refused_with_the_certificate(monkeypatch):
    monkeypatch.setenv("GNEWT_MAX_BYTES", "1000")
    with pytest.raises(gnewt.PlanError, match=r"too wide for memory[\s\S]*width[\s\S]*order="):
        gnewt.explain(chain, np.zeros(40))
