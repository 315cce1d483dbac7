"""Bundle adjustment: cameras and points from what the cameras saw.

Each observation joins one camera and one point; the tree eliminates points first, as the Schur complement of photogrammetry does,
because that is the cheaper order, not because anybody said so.
Run: python examples/bundle_adjustment.py [--cameras 8] [--points 60] [--out bundle_adjustment.png]
"""

import argparse

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import gnewt

jax.config.update("jax_enable_x64", True)

FOCAL, NOISE, SEEN = 500.0, 0.7, 0.7


def turn(w, p):
    """p, turned by the rotation vector w."""
    angle2 = w @ w + 1e-12
    angle = jnp.sqrt(angle2)
    cross = jnp.cross(w, p)
    return jnp.cos(angle) * p + jnp.sin(angle) / angle * cross + (1 - jnp.cos(angle)) / angle2 * (w @ p) * w


def project(camera, point):
    """Pixels of a point; a camera is a rotation vector and a translation."""
    seen = turn(camera[:3], point) + camera[3:]
    return FOCAL * seen[:2] / seen[2]


def misfit(camera, point, pixels):
    """A robust loss: a few pixels away it grows like a line."""
    r2 = jnp.sum((project(camera, point) - pixels) ** 2) / NOISE**2
    return 4 * (jnp.sqrt(1 + r2 / 4) - 1)


def scene(cameras, points, seed=0):
    """Cameras on an arc around a cloud of points, what they see, and a first guess."""
    rng = np.random.default_rng(seed)
    cloud = rng.normal(size=(points, 3)) * [1.5, 1.0, 1.0]
    angles = np.linspace(-0.6, 0.6, cameras)
    poses = np.stack(
        [np.array([0.0, a, 0.0, 0.3 * np.sin(5 * a), 0.0, 8 + 0.5 * np.cos(7 * a)]) for a in angles]
    )
    who, what = np.nonzero(rng.random((cameras, points)) < SEEN)
    pixels = np.asarray(jax.vmap(project)(jnp.asarray(poses[who]), jnp.asarray(cloud[what])))
    pixels = pixels + NOISE * rng.normal(size=pixels.shape)
    wrong = rng.random(len(pixels)) < 0.03
    pixels[wrong] += rng.normal(size=(wrong.sum(), 2)) * 40
    guess = {
        "cameras": poses[2:] + rng.normal(size=(cameras - 2, 6)) * [0.02, 0.02, 0.02, 0.2, 0.2, 0.2],
        "points": cloud + 0.3 * rng.normal(size=cloud.shape),
    }
    return poses, cloud, who, what, pixels, guess


def draw(path, poses, cloud, guess, found, deviations):
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for axes, points, title in ((left, guess["points"], "guess"), (right, found["points"], "adjusted")):
        axes.scatter(cloud[:, 0], cloud[:, 2], s=40, facecolors="none", edgecolors="0.6", label="truth")
        axes.set(title=title, xlabel="x", ylabel="depth")
        if points is guess["points"]:
            axes.scatter(points[:, 0], points[:, 2], s=10, color="C3", label="points")
            axes.legend()
    dots = right.scatter(found["points"][:, 0], found["points"][:, 2], s=14, c=deviations, cmap="viridis")
    fig.colorbar(dots, label="standard deviation of the depth")
    fig.savefig(path, dpi=100)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cameras", type=int, default=8)
    parser.add_argument("--points", type=int, default=60)
    parser.add_argument("--out", default="bundle_adjustment.png")
    args = parser.parse_args()

    poses, cloud, who, what, pixels, guess = scene(args.cameras, args.points)
    anchors = jnp.asarray(poses[:2])  # two cameras are known: they fix place and scale

    def cost(scene):
        cameras = jnp.concatenate([anchors, scene["cameras"]])
        return jnp.sum(jax.vmap(misfit)(cameras[who], scene["points"][what], pixels))

    res = gnewt.minimize(cost, guess)
    print(res)
    variances = gnewt.factorize(cost)(res.x).marginal_variances()
    deviations = np.sqrt(np.asarray(variances["points"])[:, 2])
    before, after = (
        np.linalg.norm(p - cloud, axis=1) for p in (guess["points"], np.asarray(res.x["points"]))
    )
    print(f"{args.cameras} cameras, {args.points} points, {len(who)} observations")
    print(f"points are off by {np.median(before):.3f} before and {np.median(after):.4f} after (median)")
    draw(args.out, poses, cloud, guess, res.x, deviations)


if __name__ == "__main__":
    main()
