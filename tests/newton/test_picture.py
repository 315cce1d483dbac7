"""Pictures of runs and of uncertainty: what they show is what was found."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gnewt
from gnewt.newton.picture import columns_of

if importlib.util.find_spec("matplotlib") is None:
    pytest.skip("matplotlib is missing", allow_module_level=True)


def valley(x):
    return jnp.sum((x[1:] - x[:-1] ** 2) ** 2) + jnp.sum((1 - x) ** 2)


def _titles(figure):
    return [ax.get_title(loc="left") for ax in figure.axes]


def _saved(figure, tmp_path):
    figure.savefig(tmp_path / "picture.png")
    return (tmp_path / "picture.png").stat().st_size


def test_a_run_shows_its_history(tmp_path):
    res = gnewt.minimize(valley, jnp.linspace(-1.0, 1.0, 6))
    figure = res.plot()
    errors = figure.axes[1].get_lines()[0].get_ydata()
    np.testing.assert_allclose(errors, [r.grad_norm for r in res.history] + [res.grad_norm])
    assert "converged" in figure.get_suptitle() and "of 6" in _titles(figure)[2]
    bars = [bar.get_height() for bar in figure.axes[2].patches]
    negative = [max(r.inertia.negative, 0) if r.inertia.positive >= 0 else 0 for r in res.history]
    assert bars[: len(negative)] == negative
    assert _saved(figure, tmp_path) > 10_000


def test_runs_of_compiled_code_show_the_steps_they_took():
    res = jax.jit(lambda x: gnewt.minimize(valley, x, max_steps=60))(jnp.linspace(-1.0, 1.0, 6))
    assert len(columns_of(res.history)["value"]) == int(res.num_steps) < 60
    assert len(res.plot().axes[1].get_lines()[0].get_ydata()) == int(res.num_steps) + 1
    many = jax.tree.map(lambda a: jnp.stack([a, a]), res)
    with pytest.raises(gnewt.StepError, match="batch of shape"):
        many.plot()


def test_runs_with_limits_show_violation_and_lengths(tmp_path):
    res = gnewt.minimize(valley, jnp.zeros(4), constraints=gnewt.equal(jnp.sum, 1.0))
    figure = res.plot()
    labels = [line.get_label() for line in figure.axes[1].get_lines()]
    assert {"dual", "violation", "error at the end"} <= set(labels)
    assert "step lengths" in _titles(figure) and _saved(figure, tmp_path) > 10_000


def test_a_run_without_steps_has_a_picture(tmp_path):
    assert _saved(gnewt.minimize(valley, jnp.ones(4)).plot(), tmp_path) > 5_000
    assert _saved(gnewt.minimize(valley, jnp.ones(4), max_steps=0).plot(), tmp_path) > 5_000


def test_bands_are_marginal(tmp_path):
    def density(z):
        return jnp.sum((z["w"][1:] - z["w"][:-1]) ** 2) + jnp.sum(z["w"] ** 2) + 2 * (z["s"] - 3.0) ** 2

    factor = gnewt.factorize(density)({"w": jnp.zeros((70, 2)), "s": jnp.array(3.0)})
    figure = factor.plot(deviations=3.0)
    band = figure.axes[0].collections[0].get_paths()[0].vertices[:, 1]
    std = np.sqrt(np.asarray(factor.marginal_variances()["w"])[:, 0])
    np.testing.assert_allclose(band.max(), 3 * std.max(), rtol=1e-6)
    assert "x['s'] = 3 ± 1.5" in [text.get_text() for text in figure.axes[1].texts]  # ∂²f = 4
    assert _saved(figure, tmp_path) > 10_000


def test_bands_of_outputs_lie_around_their_values():
    def smoothing(u):
        def stage(x, u):
            x = 0.9 * x + u
            return x, x

        _, xs = jax.lax.scan(stage, 0.0, u)
        return jnp.sum((xs - 1.0) ** 2) + jnp.sum(u**2), {"xs": xs}

    u = jnp.full(80, 0.1)
    figure = gnewt.factorize(smoothing, has_aux=True, keep=True)(u)[0].plot(of="outputs")
    middle = figure.axes[0].get_lines()[0].get_ydata()
    np.testing.assert_allclose(middle, smoothing(u)[1]["xs"], rtol=1e-12)


def test_there_are_no_bands_without_curvature():
    factor = gnewt.factorize(lambda x: jnp.sum(jnp.cos(x)))(jnp.zeros(3))
    with pytest.raises(gnewt.StepError, match="not positive definite"):
        factor.plot()
    with pytest.raises(gnewt.OptionError, match="'inputs', 'outputs'"):
        factor.plot("states")


def test_a_missing_matplotlib_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("gnewt._viz.has_matplotlib", lambda: False)
    with pytest.raises(ImportError, match=r"pip install 'gnewt\[viz\]'"):
        gnewt.minimize(valley, jnp.ones(4)).plot()
    with pytest.raises(ImportError, match="matplotlib"):
        gnewt.explain(valley, jnp.ones(4)).plot()
