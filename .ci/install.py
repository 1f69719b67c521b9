"""Installs the packages of a lock file, and says which one it downloads: on a slow line this takes minutes.

.venv/bin/python .ci/install.py requirements.lock
"""

import re
import subprocess
import sys
from pathlib import Path

PIP = (sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--require-hashes", "-r")


def main(lock: str) -> int:
    count = len(re.findall(r"^\S+==", Path(lock).read_text(), re.MULTILINE))
    print(f"Packages of {lock}, {count} in all:", flush=True)
    number = 0
    others = []
    with subprocess.Popen([*PIP, lock], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        for line in pip.stdout or ():
            download = re.match(
                r"\s+Downloading ([^-\s]+)-(\d[^-\s]*?)(?:-\S*|\.tar\.gz)?(?: \((.*)\))?$", line
            )
            if re.match(r"Collecting |Requirement already satisfied", line):
                number += 1
            elif download:
                size = f", {download[3]}" if download[3] else ""
                print(f"  {number}/{count} downloading {download[1]} {download[2]}{size}", flush=True)
            elif line.startswith("Installing "):
                print("  installing them", flush=True)
            else:
                others.append(line)
    if pip.returncode:
        sys.stderr.write("".join(others))
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
