"""A training loop, or a service that answers requests, for `benchmarks.sharing`.

`python sharing_program.py FRAMEWORK KIND` is run by any Python that has the framework; nothing of gpupack is
imported. It prints a line of JSON once it is ready, which names the device that it uses. Then it works for as
many seconds as a line of its input says, and prints how many steps it took and how long each one did.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

WIDTH = 4096
BATCHES = {"train": 4096, "infer": 1}
LAYERS = 4
PAUSE_S = 0.005
"""Between two requests: a service waits for them, a training loop waits for nothing."""

Step = Callable[[], object]


def make_python(kind: str) -> tuple[str, Step]:
    """Make a step of Python alone: for a machine without a card."""
    count = BATCHES[kind]
    return "processor", lambda: sum(range(count))


def make_torch(kind: str) -> tuple[str, Step]:
    torch: Any = importlib.import_module("torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).to(device, torch.bfloat16)
    batch = torch.randn(BATCHES[kind], WIDTH, device=device, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def train() -> object:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        return next(model.parameters()).sum().item()

    def infer() -> object:
        with torch.no_grad():
            return model(batch).sum().item()

    return device, train if kind == "train" else infer


def make_jax(kind: str) -> tuple[str, Step]:
    jax: Any = importlib.import_module("jax")
    numpy: Any = jax.numpy
    keys = jax.random.split(jax.random.PRNGKey(0), LAYERS + 1)
    weights = [jax.random.normal(key, (WIDTH, WIDTH), numpy.bfloat16) / WIDTH**0.5 for key in keys[1:]]
    batch = jax.random.normal(keys[0], (BATCHES[kind], WIDTH), numpy.bfloat16)

    def forward(layers: Any) -> Any:
        out = batch
        for layer in layers:
            out = jax.nn.relu(out @ layer)
        return (out * out).mean()

    def descend(layers: Any) -> Any:
        return [layer - 1e-3 * slope for layer, slope in zip(layers, jax.grad(forward)(layers), strict=True)]

    update, answer = jax.jit(descend), jax.jit(forward)
    state = [weights]

    def train() -> object:
        state[0] = update(state[0])
        return jax.block_until_ready(state[0])

    return jax.devices()[0].platform, train if kind == "train" else lambda: float(answer(weights))


FRAMEWORKS = {"python": make_python, "torch": make_torch, "jax": make_jax}


def work(step: Step, seconds: float, pause_s: float) -> list[float]:
    """Take one step after the other for so long; the seconds that each one took."""
    took_s: list[float] = []
    end_s = time.perf_counter() + seconds
    while not took_s or time.perf_counter() < end_s:
        began_s = time.perf_counter()
        step()
        took_s.append(time.perf_counter() - began_s)
        if pause_s:
            time.sleep(pause_s)
    return took_s


def main() -> None:
    """Serve on the standard streams."""
    framework, kind = sys.argv[1:]
    device, step = FRAMEWORKS[framework](kind)
    # Libraries are loaded and kernels compiled with the first steps.
    work(step, 0.5, 0)
    print(json.dumps({"device": device}), flush=True)
    for line in sys.stdin:
        took_s = work(step, float(line), PAUSE_S if kind == "infer" else 0)
        print(json.dumps({"steps": len(took_s), "took_s": took_s}), flush=True)


if __name__ == "__main__":
    main()
