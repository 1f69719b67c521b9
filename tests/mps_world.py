"""A program that behaves like nvidia-cuda-mps-control, as far as a supervisor can see."""

import os
import sys
from pathlib import Path

PROGRAM = r'''#!{python}
"""`-f` is the control daemon; without it one command from stdin is passed on to the daemon of the folder."""
import os, signal, socket, sys
from pathlib import Path

pipe = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
address = pipe / "control"
history = Path(os.environ["CUDA_MPS_LOG_DIRECTORY"]) / "control.log"

def note(text):
    with history.open("a") as file:
        file.write(text + "\n")

def client():
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.connect(str(address))
        except OSError:
            print("Cannot find MPS control daemon process")
            return 1
        asking.sendall(sys.stdin.readline().encode())
        print(asking.recv(4096).decode(), end="")
    return 0

def daemon():
    if (pipe / "broken").exists():
        return 1
    note(f"started {{os.getpid()}} on {{os.environ['CUDA_VISIBLE_DEVICES']}} with {{' '.join(sys.argv[1:])}}")
    address.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as serving:
        serving.bind(str(address))
        serving.listen()
        while True:
            asked, _ = serving.accept()
            with asked:
                command = asked.recv(4096).decode().strip()
                if (pipe / "hangs").exists() and command != "quit":
                    asked.recv(1)
                    continue
                if command == "get_server_list":
                    asked.sendall(f"{{os.getpid() + 1000}}\n".encode())
                elif command.startswith("set_default_device_pinned_mem_limit "):
                    note(command)
                elif command == "quit":
                    note("quit")
                    asked.sendall(b"")
                    return 0
                else:
                    asked.sendall(b"Invalid command\n")

sys.exit(daemon() if "-f" in sys.argv else client())
'''


def make_program(folder: Path) -> Path:
    """Write the program into a folder; returns its path."""
    path = folder / "nvidia-cuda-mps-control"
    path.write_text(PROGRAM.format(python=f"{sys.executable} -IS"))
    path.chmod(0o755)
    return path


def history(root: Path, uuid: str) -> list[str]:
    """What a card's control daemons noted down, oldest first."""
    path = root / uuid / "log" / "control.log"
    return path.read_text().splitlines() if path.exists() else []


def pid_of(root: Path, uuid: str) -> int:
    """The control daemon that was started last."""
    return int([line for line in history(root, uuid) if line.startswith("started")][-1].split()[1])


def lives(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def end(pid: int, number: int) -> None:
    os.kill(pid, number)
