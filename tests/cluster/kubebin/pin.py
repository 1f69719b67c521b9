"""Pin a Kubernetes version: `make kube-version KUBE_VERSION=1.37.1` writes 1.37/go.mod and 1.37/go.sum.

k8s.io/kubernetes requires its staging modules as v0.0.0, so each must be replaced by the release of the same
number. The list is read from its own go.mod: it differs from one minor version to the next.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def pin(version: str) -> Path:
    """Write the module files of one version; returns their folder.

    Args:
        version: As in "1.37.1".

    Raises:
        subprocess.CalledProcessError: If Go cannot get the modules; it has said why on stderr.
    """
    minor, _, patch = version.rpartition(".")
    folder = FOLDER / minor
    folder.mkdir(exist_ok=True)
    upstream = _module_file(version)
    compiler = re.search(r"^go \S+", upstream, re.MULTILINE)
    assert compiler is not None, "k8s.io/kubernetes names no Go version"
    staging = f"v0.{minor.partition('.')[2]}.{patch}"
    modules = sorted(set(re.findall(r"^\t(k8s\.io/\S+) v0\.0\.0$", upstream, re.MULTILINE)))
    replaced = "\n".join(f"\t{module} => {module} {staging}" for module in modules)
    (folder / "go.mod").write_text(
        f"module gpupack.test/kubebin\n\n{compiler[0]}\n\n"
        f"require (\n\tk8s.io/component-base {staging}\n\tk8s.io/kubernetes v{version}\n)\n\n"
        f"replace (\n{replaced}\n)\n"
    )
    (folder / "go.sum").unlink(missing_ok=True)
    environment = dict(os.environ, GOTOOLCHAIN="local")
    command = ["go", "mod", "tidy", f"-modfile={folder.name}/go.mod"]
    subprocess.run(command, cwd=FOLDER, env=environment, check=True)
    return folder


def _module_file(version: str) -> str:
    command = ["go", "mod", "download", "-json", f"k8s.io/kubernetes@v{version}"]
    answer = subprocess.run(command, cwd="/", check=True, stdout=subprocess.PIPE, text=True).stdout
    return Path(json.loads(answer)["GoMod"]).read_text()


if __name__ == "__main__":
    if not re.fullmatch(r"1\.\d+\.\d+", " ".join(sys.argv[1:])):
        sys.stderr.write("which Kubernetes? make kube-version KUBE_VERSION=1.37.1\n")
        sys.exit(2)
    pin(sys.argv[1])
