"""Every Python block of README.md and docs/ runs, page by page, and does what the text says."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.pages import DOCS, name_of, pages, program, run

SLOW = {
    "batches",
    "coming_from/crocoddyl",
    "coming_from/gtsam",
    "coming_from/optimistix",
    "coming_from/trajax",
    "constraints",
    "control",
    "debugging",
    "learning",
    "start",
    "uncertainty",
}
"""Pages that take more than a few seconds."""
ELSEWHERE = {"from_scratch", "engine_guide"}
"""Pages with a test file of their own, which runs them."""
_SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)
"""What a page may set, and is set back behind it."""
PAGES = {name_of(page): page for page in pages() if name_of(page) not in ELSEWHERE}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in PAGES]
)
def test_page(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for what pages write
    settings = {setting: getattr(jax.config, setting) for setting in _SETTINGS}
    try:
        space = run(PAGES[name])
    finally:
        for setting, value in settings.items():
            jax.config.update(setting, value)
    CHECKS.get(name, lambda space: None)(space)


def check_readme(space):
    cost, step = space["cost"], jnp.asarray(space["step"])
    grad, product = jax.jit(lambda d: jax.jvp(jax.grad(cost), (jnp.zeros_like(d),), (d,)))(step)
    assert jnp.linalg.norm(product + grad) <= 1e-10 * jnp.linalg.norm(grad)
    assert space["res"].success


def check_constraints(space):
    res, warm, lifted = space["res"], space["warm"], space["lifted"]
    assert res.success and warm.success and lifted.success
    assert res.multipliers["disc"] > 0 and bool(res.active["disc"])
    assert np.allclose(space["dx"][0] - space["dx"][1], 1, atol=1e-6)
    assert warm.num_steps <= 5 < res.num_steps
    assert np.allclose(jnp.sum(space["many"], 1), [0, 0.5, 1, 2], atol=1e-6)
    assert lifted.gap < 1e-8 and np.allclose(lifted.outputs["states"][-1], 0, atol=1e-6)
    assert np.max(np.abs(lifted.x)) <= 1


def check_explain(space):
    lines, _ = program(PAGES["explain"])
    blamed = re.match(r".*explain\.md:(\d+):", space["report"].cheaper[0])
    assert lines[int(blamed[1]) - 1].strip() == "x = x / jnp.sum(x**2)"
    assert f"the width is {space['report'].blamed[0].width} " in space["report"].cheaper[0]


CHECKS = {"README": check_readme, "constraints": check_constraints, "explain": check_explain}


def test_all_statuses_and_classes_are_explained():
    import gnewt
    from gnewt.newton import STATUSES, STEP_STATUSES

    constraints, errors = (
        (DOCS / f"{name}.md").read_text(encoding="utf-8") for name in ("constraints", "errors")
    )
    assert all(f"`{status}`" in constraints for status in STATUSES if status != "running")
    assert all(f"| `{status}` |" in errors for status in STEP_STATUSES)
    classes = {name for name in gnewt.__all__ if name.endswith(("Error", "Notice", "Warning"))}
    reference = (DOCS / "api" / "errors.md").read_text(encoding="utf-8")
    assert all(f"::: gnewt.{name}\n" in reference for name in classes)
    assert all(f"| `{name}` |" in errors for name in classes if not name.endswith("Error"))
