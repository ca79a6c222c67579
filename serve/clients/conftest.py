"""A server of `doorbell serve` for each test, and client modules of packages that import torch or ray when they are imported whole."""

import importlib
import importlib.machinery
import os
import subprocess
import sys
import types

import pytest


class Server:
    def __init__(self, arguments):
        program = os.environ.get("DOORBELL", "doorbell")
        command = [program, "serve", "--listen", "127.0.0.1:0", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        said = ""
        while "http://" not in (line := self.process.stderr.readline()):
            said += line
            if not line:
                raise RuntimeError(said)
        self.url = "http://" + line.rsplit("http://", 1)[1].strip()

    def end(self):
        self.process.terminate()
        return self.process.wait(timeout=20)


@pytest.fixture
def server(tmp_path):
    template = tmp_path / "chat.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    device = os.environ.get("DOORBELL_DEVICE", "model")
    server = Server(["--model", "micro", "--device", device, "--slots", "32", "--chat-template", str(template)])
    yield server
    assert server.end() == 143


def stand_in(name, **values):
    """A module of this name that has these values, and whatever else is asked for as an empty class."""
    module = types.ModuleType(name)
    module.__path__ = []
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__getattr__ = lambda attribute: type(attribute, (), {})
    for key, value in values.items():
        setattr(module, key, value)
    sys.modules[name] = module
    return module


def bare(package):
    """The package without what its `__init__` imports: its modules can be imported one by one."""
    spec = importlib.machinery.PathFinder.find_spec(package.split(".")[-1], path_of(package))
    module = types.ModuleType(package)
    module.__path__ = list(spec.submodule_search_locations)
    module.__spec__ = spec
    sys.modules[package] = module
    return module


def path_of(package):
    parent = package.rpartition(".")[0]
    return sys.modules[parent].__path__ if parent else None
