"""kubectl's JSON is decoded in one pass; what that pass does not take is looked at item by item."""

import json

import msgspec
import pytest

from gpupack.errors import InputError
from gpupack.inventory import kubectl_json
from kubeapi.objects import Node, Pod

NODE = {"kind": "Node", "metadata": {"name": "a", "labels": {"x": "y"}}}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "n"},
    "spec": {"nodeName": "a"},
}
INPUTS = {
    "sound": [NODE, POD],
    "nothing": [],
    "left out": [NODE, {"kind": "Secret", "metadata": {"name": "s"}, "data": 1}],
    "nothing but left out": [{"kind": "Secret", "metadata": {"name": "s"}}],
    "no kind": [{"metadata": {"name": "a"}}, POD],
    "kind at the end": [{"metadata": {"name": "a"}, "kind": "Node"}],
    "another kind": [NODE, {"kind": "Deployment", "metadata": {"name": "d"}}],
    "no name": [{"kind": "Node", "metadata": {}}],
    "of another type": [NODE, {**POD, "spec": 5}],
    "null": [NODE, None],
}
KINDS = {"Node": Node, "Pod": Pod, "Secret": None}


def read(text):
    """Read an input; for comparing, without the types that tell their kinds in a list."""
    try:
        found = kubectl_json.read_items(text, KINDS, content="nodes and pods", allowed="allowed: a list")
    except InputError as error:
        return str(error)
    return {
        kind: [msgspec.to_builtins(item) | {"kind": kind} for item in items] for kind, items in found.items()
    }


@pytest.mark.parametrize("name", INPUTS)
def test_one_pass_reads_what_item_by_item_is_read(name, monkeypatch):
    text = json.dumps({"items": INPUTS[name]})
    at_once = read(text)
    monkeypatch.setattr(kubectl_json, "_read_sound", lambda *_: None)

    assert at_once == read(text)


@pytest.mark.parametrize("name", ["sound", "left out", "kind at the end"])
def test_a_sound_list_is_decoded_once(name, monkeypatch):
    monkeypatch.delattr(kubectl_json, "_read")

    assert read(json.dumps({"items": INPUTS[name]}))["Node"][0]["metadata"]["name"] == "a"
