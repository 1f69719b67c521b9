"""Lists, selectors, deletion, watches, Leases, events, and history that is gone."""

from tests.scripts.apiserver_builders import GONE, LEASES, MERGE, NOBODY, NODE, OURS, PODS, bind, create
from tests.scripts.apiserver_play import Step

VIEW_STEPS: tuple[Step, ...] = (
    # Lists, selectors, watches
    create("b"),
    create("c"),
    Step("all of ours", "GET", f"{PODS}?{OURS}", pick=("metadata.name",)),
    Step("on no node", "GET", f"{PODS}?{OURS}&fieldSelector=spec.nodeName%3D", pick=("metadata.name",)),
    Step(
        "on a node", "GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dscript-none", pick=("metadata.name",)
    ),
    Step("running", "GET", f"{PODS}?{OURS}&fieldSelector=status.phase%3DRunning", pick=("metadata.name",)),
    Step(
        "not running, of nobody's",
        "GET",
        f"{PODS}?fieldSelector=spec.schedulerName%3Dnobody,status.phase!%3DRunning",
        pick=("metadata.name",),
    ),
    Step(
        "labels in a set",
        "GET",
        f"{PODS}?labelSelector=script+in+(yes,no),!other,script!%3Dno",
        pick=("metadata.name",),
    ),
    Step("unknown field", "GET", f"{PODS}?fieldSelector=spec.foo%3Dx"),
    Step("field without operator", "GET", f"{PODS}?fieldSelector=abc"),
    Step("label without operator", "GET", f"{PODS}?labelSelector=a+b"),
    Step(
        "page 1", "GET", f"{PODS}?{OURS}&limit=2", save={"more": "metadata.continue"}, pick=("metadata.name",)
    ),
    Step("page 2", "GET", f"{PODS}?{OURS}&limit=2&continue={{more}}", pick=("metadata.name",)),
    Step("page with a version", "GET", f"{PODS}?{OURS}&limit=2&resourceVersion=5&continue={{more}}"),
    Step("version from the future", "GET", f"{PODS}?resourceVersion=999999999"),
    Step("version that is none", "GET", f"{PODS}?resourceVersion=abc"),
    Step("limit that is none", "GET", f"{PODS}?limit=abc"),
    Step("watch from a version that is none", "GET", f"{PODS}?watch=1&resourceVersion=abc"),
    Step("relabel b away", "PATCH", f"{PODS}/script-b", {"metadata": {"labels": {"script": "no"}}}, MERGE),
    Step("relabel b back", "PATCH", f"{PODS}/script-b", {"metadata": {"labels": {"script": "yes"}}}, MERGE),
    # Deletion
    Step("delete another uid", "DELETE", f"{PODS}/script-a", {"preconditions": {"uid": NOBODY}}),
    Step("delete a stale version", "DELETE", f"{PODS}/script-a", {"preconditions": {"resourceVersion": "1"}}),
    Step("delete an unbound pod", "DELETE", f"{PODS}/script-b", pick=GONE),
    Step("it is gone", "GET", f"{PODS}/script-b"),
    Step(
        "delete a bound pod", "DELETE", f"{PODS}/script-a", {"preconditions": {"uid": "{a.uid}"}}, pick=GONE
    ),
    Step("delete it again", "DELETE", f"{PODS}/script-a", pick=GONE),
    Step("with a longer grace", "DELETE", f"{PODS}/script-a", {"gracePeriodSeconds": 60}, pick=GONE),
    Step("with a shorter grace", "DELETE", f"{PODS}/script-a?gracePeriodSeconds=5", pick=GONE),
    Step("it is still there", "GET", f"{PODS}/script-a", pick=GONE),
    bind("bind a terminating pod", "a", uid="{a.uid}"),
    Step("delete it now", "DELETE", f"{PODS}/script-a", {"gracePeriodSeconds": 0}, pick=GONE),
    Step("delete what is gone", "DELETE", f"{PODS}/script-a"),
    bind("bind c", "c"),
    Step("c has ended", "PATCH", f"{PODS}/script-c/status", {"status": {"phase": "Succeeded"}}, MERGE),
    Step("delete an ended pod", "DELETE", f"{PODS}/script-c", pick=GONE),
    Step("finalizer", "PATCH", f"{PODS}/script-num", {"metadata": {"finalizers": ["script/x"]}}, MERGE),
    Step("delete with a finalizer", "DELETE", f"{PODS}/script-num", pick=(*GONE, "metadata.finalizers")),
    bind("bind with a finalizer", "num"),
    Step("drop the finalizer", "PATCH", f"{PODS}/script-num", {"metadata": {"finalizers": None}}, MERGE),
    Step("that ended it", "GET", f"{PODS}/script-num"),
    Step(
        "everything as a watch saw it",
        "WATCH",
        f"{PODS}?{OURS}&resourceVersion={{start}}",
        pick=(
            "spec.nodeName",
            "metadata.deletionGracePeriodSeconds",
            "metadata.labels.script",
            "status.phase",
        ),
    ),
    Step("a watch of the present", "WATCH", f"{PODS}?{OURS}&resourceVersion=0", pick=("kind",)),
    Step(
        "a watch of one node's pods",
        "WATCH",
        f"{PODS}?fieldSelector=spec.nodeName%3Dscript-none&resourceVersion={{start}}",
    ),
    # Leases and events
    Step("no lease", "GET", f"{LEASES}/script"),
    Step(
        "create lease",
        "POST",
        LEASES,
        {
            "metadata": {"name": "script"},
            "spec": {
                "holderIdentity": "a",
                "leaseDurationSeconds": 15,
                "renewTime": "2026-01-02T03:04:05.000006Z",
            },
        },
        save={"lease.rv": "metadata.resourceVersion", "lease.uid": "metadata.uid"},
        pick=("apiVersion", "kind", "spec"),
    ),
    Step(
        "swap lease",
        "PUT",
        f"{LEASES}/script",
        {"metadata": {"name": "script", "resourceVersion": "{lease.rv}"}, "spec": {"holderIdentity": "b"}},
        pick=("spec",),
    ),
    Step(
        "swap a stale lease",
        "PUT",
        f"{LEASES}/script",
        {"metadata": {"name": "script", "resourceVersion": "{lease.rv}"}, "spec": {"holderIdentity": "c"}},
    ),
    Step("put without version", "PUT", f"{LEASES}/script", {"metadata": {"name": "script"}, "spec": {}}),
    Step("put another name", "PUT", f"{LEASES}/script", {"metadata": {"name": "other"}, "spec": {}}),
    Step(
        "lease of no time", "POST", LEASES, {"metadata": {"name": "s"}, "spec": {"leaseDurationSeconds": 0}}
    ),
    Step("lease of bad time", "POST", LEASES, {"metadata": {"name": "s"}, "spec": {"renewTime": "x"}}),
    Step("delete lease", "DELETE", f"{LEASES}/script", pick=("status", "details.name", "details.group")),
    Step(
        "event",
        "POST",
        "/api/v1/namespaces/default/events",
        {
            "metadata": {"name": "script-event"},
            "involvedObject": {"kind": "Pod", "namespace": "default", "name": "script-a"},
            "reason": "Script",
            "message": "m",
            "type": "Normal",
        },
        pick=("involvedObject", "reason", "type"),
    ),
    Step(
        "events of a pod",
        "GET",
        "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dscript-a,reason%3DScript",
        pick=("message",),
    ),
    Step(
        "event of another namespace",
        "POST",
        "/api/v1/namespaces/default/events",
        {
            "metadata": {"name": "script-x"},
            "involvedObject": {"kind": "Pod", "namespace": "other", "name": "p"},
        },
    ),
    Step(
        "event about a node",
        "POST",
        "/api/v1/namespaces/default/events",
        {
            "metadata": {"name": "script-node.1"},
            "involvedObject": {"kind": "Node", "name": "script-node", "uid": "script-node"},
            "reason": "Script",
            "message": "m",
            "type": "Warning",
            "count": 1,
            "firstTimestamp": "2026-01-02T03:04:05Z",
            "lastTimestamp": "2026-01-02T03:04:05Z",
            "source": {"component": "script", "host": "script-node"},
        },
        pick=("metadata.namespace", "involvedObject", "count", "source", "lastTimestamp"),
    ),
    Step(
        "it happens again",
        "PATCH",
        "/api/v1/namespaces/default/events/script-node.1",
        {"count": 2, "lastTimestamp": "2026-01-02T03:05:05Z", "message": "n"},
        MERGE,
        pick=("count", "message", "firstTimestamp", "lastTimestamp"),
    ),
    Step(
        "event about a node elsewhere",
        "POST",
        "/api/v1/namespaces/kube-system/events",
        {"metadata": {"name": "script-x"}, "involvedObject": {"kind": "Node", "name": "script-node"}},
    ),
    Step(
        "event of bad time",
        "POST",
        "/api/v1/namespaces/default/events",
        {
            "metadata": {"name": "script-x"},
            "involvedObject": {"kind": "Node", "name": "script-node"},
            "lastTimestamp": "x",
        },
    ),
    Step(
        "event that has ended",
        "PATCH",
        "/api/v1/namespaces/default/events/script-x",
        {"count": 2},
        MERGE,
    ),
    # Clean up, then history is gone
    Step("delete gated", "DELETE", f"{PODS}/script-gated", pick=GONE),
    Step("delete event", "DELETE", "/api/v1/namespaces/default/events/script-event"),
    Step("delete a node's event", "DELETE", "/api/v1/namespaces/default/events/script-node.1"),
    Step("delete node", "DELETE", NODE, pick=("status", "details.name", "details.kind")),
    Step("node is gone", "GET", NODE),
    Step("forget", "COMPACT"),
    Step("old page", "GET", f"{PODS}?{OURS}&limit=2&continue={{more}}"),
    Step("old watch", "WATCH", f"{PODS}?resourceVersion={{start}}"),
    Step("old exact list", "GET", f"{PODS}?resourceVersion={{start}}&resourceVersionMatch=Exact"),
    Step("nothing is left", "GET", f"{PODS}?{OURS}", pick=("metadata.name",)),
)
