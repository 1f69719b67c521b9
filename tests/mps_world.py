"""A program that behaves like nvidia-cuda-mps-control, as far as a supervisor can see."""

import os
import sys
from pathlib import Path

PROGRAM = r'''#!@PYTHON@
"""`-f` is the control daemon; without it one command is passed on to the daemon of the folder.

Of MPS v2 the command comes from stdin, of v3 from the arguments. A v3 server has ended, or cannot begin,
while a file `no_server` is there. A client of a namespace is a file `client` beside its socket.
"""
import json, os, re, signal, socket, sys
from pathlib import Path

pipe = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
address = pipe / "control"
history = Path(os.environ["CUDA_MPS_LOG_DIRECTORY"]) / "control.log"
arguments = sys.argv[1:]
protocol = os.environ.get("CUDA_MPS_PROTOCOL_VERSION", "2")
if arguments[-2:-1] == ["-p"]:
    arguments = arguments[:-2]
elif arguments[:1] == ["-p"]:
    arguments = arguments[2:]

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
        asking.sendall(json.dumps(arguments or [sys.stdin.readline().strip()]).encode())
        status, text = json.loads(asking.recv(1 << 20).decode() or '[0, ""]')
        print(text)
    return status

class Refused(Exception):
    pass

class V2:
    def answer(self, words):
        command = words[0]
        if command == "get_server_list":
            return str(os.getpid() + 1000)
        if command.startswith("set_default_device_pinned_mem_limit "):
            note(command)
            return ""
        return "Invalid command"

class V3:
    def __init__(self):
        self.servers, self.sockets = {}, {}

    def answer(self, words):
        options = dict(word[2:].split("=") for word in words if word.startswith("--") and "=" in word)
        force = "--force" in words
        module, verb, *rest = [word for word in words if not word.startswith("--")]
        if (pipe / "no_server").exists():
            self.servers.clear()
        if verb != "list":
            note(" ".join(words))
        name = rest[0] if rest else None
        if verb == "create" and not re.fullmatch("[a-z0-9_]{1,64}", name):
            raise Refused(f"Invalid name '{name}'")
        if "active-thread-percentage" in options and not 1 <= int(options["active-thread-percentage"]) <= 100:
            raise Refused("Invalid active thread percentage")
        return getattr(self, f"{module}_{verb}")(name, options, force)

    def server_create(self, name, options, force):
        if name in self.servers:
            raise Refused(f"Server '{name}' already exists")
        # Even where none of its cards is there: then it ends, and that is all.
        if options["allowed-devices"] == os.environ["CUDA_VISIBLE_DEVICES"]:
            self.servers[name] = {}
            self.open(name, "default")
        return ""

    def server_list(self, name, options, force):
        device = os.environ["CUDA_VISIBLE_DEVICES"]
        rows = (f"{each},0,{os.getpid() + 1000},Ready,{pipe}/{each},{device},-" for each in self.servers)
        return "\n".join(rows)

    def spaces(self, options):
        if options.get("server") not in self.servers:
            raise Refused(f"Server '{options.get('server')}' not found")
        return self.servers[options["server"]]

    def namespace_create(self, name, options, force):
        if name in self.spaces(options):
            raise Refused(f"Namespace '{name}' already exists")
        self.open(options["server"], name)
        return ""

    def namespace_set(self, name, options, force):
        limits = {key: value for key, value in options.items() if key != "server"}
        if not limits:
            raise Refused("At least one option is required")
        self.idle(name, options)
        self.spaces(options)[name].update(limits)
        return ""

    def namespace_delete(self, name, options, force):
        self.idle(name, options, force)
        del self.spaces(options)[name]
        self.sockets.pop((options["server"], name)).close()
        folder = pipe / options["server"] / name
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        return ""

    def namespace_list(self, name, options, force):
        rows = []
        for each, limits in self.spaces(options).items():
            memory = limits.get("pinned-memory-limit", "unlimited")
            percent = float(limits.get("active-thread-percentage", 100))
            server = options["server"]
            rows.append(f"{each},{server},Ready,{memory},{percent:.2f},0,{pipe}/{server}/{each}")
        return "\n".join(rows)

    def idle(self, name, options, force=False):
        if name not in self.spaces(options):
            raise Refused(f"Namespace '{name}' not found")
        if (pipe / options["server"] / name / "client").exists() and not force:
            raise Refused(f"Namespace '{name}' has active clients")

    def open(self, server, name):
        folder = pipe / server / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "control").unlink(missing_ok=True)
        self.sockets[server, name] = listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(folder / "control"))
        listening.listen()
        self.servers[server][name] = {}

def daemon():
    if (pipe / "broken").exists():
        return 1
    note(f"started {os.getpid()} on {os.environ['CUDA_VISIBLE_DEVICES']} with {' '.join(sys.argv[1:])}")
    address.unlink(missing_ok=True)
    state = V3() if protocol == "3" else V2()
    with socket.socket(socket.AF_UNIX) as serving:
        serving.bind(str(address))
        serving.listen()
        while True:
            asked, _ = serving.accept()
            with asked:
                words = json.loads(asked.recv(4096).decode())
                quits = words == (["-q"] if protocol == "3" else ["quit"])
                if (pipe / "hangs").exists() and not quits:
                    asked.recv(1)
                    continue
                if quits:
                    note("quit")
                    asked.sendall(b"")
                    return 0
                try:
                    status, text = 0, state.answer(words)
                except Refused as error:
                    status, text = 1, str(error)
                except Exception as error:
                    status, text = 1, f"Invalid command: {error!r}"
                asked.sendall(json.dumps([status, text]).encode())

sys.exit(daemon() if "-f" in sys.argv else client())
'''


def make_program(folder: Path) -> Path:
    """Write the program into a folder; returns its path."""
    path = folder / "nvidia-cuda-mps-control"
    path.write_text(PROGRAM.replace("@PYTHON@", f"{sys.executable} -IS"))
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
