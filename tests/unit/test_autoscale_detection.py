"""Which autoscaler adds nodes is seen from what the API server serves."""

import json
from collections.abc import Mapping

from structlog.testing import capture_logs

from gpupack.autoscale.detection import LOOK_AGAIN_S, AutoscalerDetector, serves_node_pools
from kubeapi.errors import Forbidden, KubeApiError, NotFound

V1 = {"versions": [{"version": "v1"}]}
NODE_POOLS = {"resources": [{"name": "nodeclaims"}, {"name": "nodepools"}]}
KARPENTER = {"/apis/karpenter.sh": V1, "/apis/karpenter.sh/v1": NODE_POOLS}


class Discovery:
    """An API server that serves some paths, or refuses them."""

    def __init__(self, answers: Mapping[str, object] | KubeApiError) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def get(self, path: str, *, timeout_s: float = 1.0) -> bytes:
        self.asked.append(path)
        if isinstance(self.answers, KubeApiError):
            raise self.answers
        if path not in self.answers:
            raise NotFound("the server could not find the requested resource", status=404)
        return json.dumps(self.answers[path]).encode()


async def test_node_pools_of_any_version_are_found() -> None:
    assert await serves_node_pools(Discovery(KARPENTER), 1.0)
    both = {"versions": [{"version": "v1alpha1"}, {"version": "v1beta1"}]}
    answers = {
        "/apis/karpenter.sh": both,
        "/apis/karpenter.sh/v1alpha1": {"resources": [{"name": "nodeoverlays"}]},
        "/apis/karpenter.sh/v1beta1": NODE_POOLS,
    }
    assert await serves_node_pools(Discovery(answers), 1.0)
    del answers["/apis/karpenter.sh/v1beta1"]
    assert not await serves_node_pools(Discovery(answers), 1.0)
    assert not await serves_node_pools(Discovery({}), 1.0)


async def test_what_is_found_is_told_with_the_reason_and_looked_at_again() -> None:
    now = 0.0
    api = Discovery({})
    detector = AutoscalerDetector(api, "auto", 1.0, lambda: now)
    assert detector.name == ""
    with capture_logs() as lines:
        await detector.refresh()
        assert detector.name == "cluster-autoscaler"
        api.answers = KARPENTER
        await detector.refresh()
        assert detector.name == "cluster-autoscaler", "looked at a moment ago"
        now += LOOK_AGAIN_S
        await detector.refresh()
        assert detector.name == "karpenter"
        now += LOOK_AGAIN_S
        await detector.refresh()
    assert [(line["autoscaler"], line["why"]) for line in lines] == [
        ("cluster-autoscaler", "the API server does not serve nodepools.karpenter.sh"),
        ("karpenter", "the API server serves nodepools.karpenter.sh"),
    ]


async def test_a_named_autoscaler_is_not_looked_for() -> None:
    api = Discovery(KARPENTER)
    detector = AutoscalerDetector(api, "cluster-autoscaler", 1.0)
    await detector.refresh()
    assert (detector.name, detector.trouble, api.asked) == ("cluster-autoscaler", "", [])


async def test_an_api_server_that_does_not_say_is_asked_again_and_changes_nothing() -> None:
    now = 0.0
    api = Discovery(Forbidden("discovery is not for you", status=403))
    detector = AutoscalerDetector(api, "auto", 1.0, lambda: now)
    await detector.refresh()
    assert detector.name == ""
    assert detector.trouble == (
        "discovery is not for you; so the autoscaler is not known: name it by --autoscaler"
    )
    api.answers = KARPENTER
    await detector.refresh()
    assert (detector.name, detector.trouble) == ("karpenter", "")
    api.answers = {"/apis/karpenter.sh": ["not", "a", "group"]}
    now += LOOK_AGAIN_S
    await detector.refresh()
    assert (detector.name, detector.trouble) == ("karpenter", "")
