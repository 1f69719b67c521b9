"""gpupack's image: its size, and how long a start takes in it and in the virtual environment here.

`python -m benchmarks.image`, as root, on Debian 12. The starts take turns. The last line is JSON.
"""

import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from benchmarks.machine import machine

SCRIPT = Path(__file__).resolve().parents[1] / ".ci" / "image.py"
ROUNDS = 11
COMMANDS = {"version": ["--version"], "node_help": ["node", "--help"]}


def main() -> None:
    """Build, unpack, measure."""
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([sys.executable, SCRIPT, folder / "image.tar"], check=True)
        root = folder / "root"
        megabytes = unpack(folder / "image.tar", root)
        print(f"compressed layers, MB: {', '.join(f'{one:.1f}' for one in megabytes)}")
        places = {
            "image": ["env", "PYTHONPATH=/opt/gpupack", "chroot", str(root), "/usr/bin/python3.11"],
            "venv": [sys.executable],
        }
        starts: dict[str, list[float]] = {f"{place}_{each}": [] for each in COMMANDS for place in places}
        for _ in range(ROUNDS):
            for each, arguments in COMMANDS.items():
                for place, program in places.items():
                    began = time.perf_counter()
                    command = [*program, "-m", "gpupack", *arguments]
                    subprocess.run(command, check=True, capture_output=True, cwd="/")
                    starts[f"{place}_{each}"].append(1000 * (time.perf_counter() - began))
    medians = {key: round(statistics.median(values)) for key, values in starts.items()}
    print(json.dumps({"compressed_mb": round(sum(megabytes), 1), "start_ms": medians}))


def unpack(archive: Path, root: Path) -> list[float]:
    """Unpack the layers of an OCI archive.

    Returns:
        Their compressed sizes in MB.
    """
    root.mkdir()
    sizes = []
    with tarfile.open(archive) as image:

        def blob(digest: str) -> bytes:
            file = image.extractfile(f"blobs/{digest.replace(':', '/')}")
            assert file is not None
            return file.read()

        index = image.extractfile("index.json")
        assert index is not None
        manifest = json.loads(blob(json.load(index)["manifests"][0]["digest"]))
        for layer in manifest["layers"]:
            sizes.append(layer["size"] / 1e6)
            subprocess.run(["tar", "-xz", "-C", root], input=blob(layer["digest"]), check=True)
    return sizes


if __name__ == "__main__":
    main()
