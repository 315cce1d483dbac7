"""Estimate the way of a robot from a g2o file: odometry, and places that it saw again.

Poses are variables, every edge of the file is a residual between two of them. The Hessian is sparse here, and the tree follows the
loops of the way; its factor also says how sure each place is. `--make` writes the file anew: 180 poses in the streets of a town.
Run: python examples/pose_graph.py [--file examples/data/town.g2o] [--out pose_graph.png]
"""

import argparse
import pathlib

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import gnewt

jax.config.update("jax_enable_x64", True)

FILE = pathlib.Path(__file__).parent / "data" / "town.g2o"
DEVIATIONS = np.array([0.05, 0.05, 0.03])


def read_g2o(path):
    """Poses [n, 3], and of each edge its two poses, the measured motion [3] and the information matrix [3, 3]."""
    poses, ends, motions, weights = {}, [], [], []
    for line in pathlib.Path(path).read_text().splitlines():
        kind, *fields = line.split()
        if kind == "VERTEX_SE2":
            poses[int(fields[0])] = [float(field) for field in fields[1:4]]
        elif kind == "EDGE_SE2":
            ends.append([int(field) for field in fields[:2]])
            motions.append([float(field) for field in fields[2:5]])
            upper = np.zeros((3, 3))
            upper[np.triu_indices(3)] = [float(field) for field in fields[5:11]]
            weights.append(upper + np.triu(upper, 1).T)
    number = {name: k for k, name in enumerate(sorted(poses))}
    ends = np.array([[number[a], number[b]] for a, b in ends])
    return np.array([poses[name] for name in sorted(poses)]), ends, np.array(motions), np.array(weights)


def motion(a, b):
    """Pose b as it is seen from pose a."""
    cos, sin = jnp.cos(a[2]), jnp.sin(a[2])
    dx, dy = b[0] - a[0], b[1] - a[1]
    return jnp.stack([cos * dx + sin * dy, cos * dy - sin * dx, b[2] - a[2]])


def edge_cost(a, b, seen, weight):
    """½ rᵀΩr of one edge; angles are compared around the circle."""
    r = motion(a, b) - seen
    r = r.at[2].set(jnp.arctan2(jnp.sin(r[2]), jnp.cos(r[2])))
    return r @ weight @ r / 2


def make_file(path, poses=180, seed=3):
    """A walk along the streets of a town, with noise in odometry and in what was seen again."""
    rng = np.random.default_rng(seed)
    truth = [np.zeros(3)]
    while len(truth) < poses:
        x, y, angle = truth[-1]
        if len(truth) % 5 == 0:
            turn = rng.choice([-1, 0, 1]) * np.pi / 2
            ahead = np.array([x, y]) + 5 * np.array([np.cos(angle + turn), np.sin(angle + turn)])
            angle = angle + (turn if np.abs(ahead).max() < 13 else np.pi / 2)
        truth.append(np.array([x + np.cos(angle), y + np.sin(angle), angle]))
    truth = np.array(truth)
    near = [
        (a, b)
        for a in range(poses)
        for b in range(a + 10, poses)
        if np.hypot(*(truth[a] - truth[b])[:2]) < 0.5
    ]
    pairs = [(k, k + 1) for k in range(poses - 1)] + near
    edges = [(a, b, motion(truth[a], truth[b]) + rng.normal(size=3) * DEVIATIONS) for a, b in pairs]
    walked = [truth[0]]
    for _, _, (dx, dy, turn) in edges[: poses - 1]:
        x, y, angle = walked[-1]
        cos, sin = np.cos(angle), np.sin(angle)
        walked.append(np.array([x + cos * dx - sin * dy, y + sin * dx + cos * dy, angle + turn]))
    information = np.diag(1 / DEVIATIONS**2)[np.triu_indices(3)]
    lines = [f"VERTEX_SE2 {k} " + " ".join(f"{v:.4f}" for v in pose) for k, pose in enumerate(walked)]
    lines += [
        f"EDGE_SE2 {a} {b} " + " ".join([f"{v:.4f}" for v in seen] + [f"{v:g}" for v in information])
        for a, b, seen in edges
    ]
    pathlib.Path(path).write_text("\n".join(lines) + "\n")


def draw(path, walked, found, ends, deviations):
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
    for axes, poses, title in ((left, walked, "odometry alone"), (right, found, "with what was seen again")):
        again = ends[np.abs(ends[:, 0] - ends[:, 1]) > 1]
        axes.plot(*poses[again][:, :, :2].transpose(2, 1, 0), color="C1", lw=0.8, alpha=0.7)
        axes.plot(*poses[:, :2].T, color="C0", lw=1)
        axes.set(title=title, aspect="equal")
    dots = right.scatter(*found[1:, :2].T, c=deviations, s=12, cmap="viridis", zorder=3)
    fig.colorbar(dots, label="standard deviation")
    fig.savefig(path, dpi=100)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", default=FILE)
    parser.add_argument("--out", default="pose_graph.png")
    parser.add_argument("--make", action="store_true")
    args = parser.parse_args()
    if args.make:
        make_file(args.file)

    start, ends, motions, weights = read_g2o(args.file)

    def cost(poses):  # the first pose stays where it is
        poses = jnp.concatenate([jnp.asarray(start[:1]), poses])
        return jnp.sum(jax.vmap(edge_cost)(poses[ends[:, 0]], poses[ends[:, 1]], motions, weights))

    res = gnewt.minimize(cost, start[1:])
    print(res)
    variances = gnewt.factorize(cost)(res.x).marginal_variances()
    deviations = np.sqrt(np.asarray(variances)[:, :2].sum(1))
    loops = int(np.sum(np.abs(ends[:, 0] - ends[:, 1]) > 1))
    print(f"{len(start)} poses, {len(ends)} edges, {loops} of them to places seen before")
    print(
        f"cost {float(cost(start[1:])):.1f} -> {res.fun:.1f}; about {1.5 * (len(ends) - len(start) + 1):.0f} is expected"
    )
    print(f"the least certain place is known to {deviations.max():.3f}")
    draw(args.out, start, np.concatenate([start[:1], res.x]), ends, deviations)


if __name__ == "__main__":
    main()
