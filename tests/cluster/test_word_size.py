"""Why a packed word carries 53 bits: what the real API server takes and refuses as a node's quantity."""

import random

import pytest

from tests.cluster.harness import ApiError, Cluster

LARGEST = 9_223_372_036_854_775
WORD = "gpupack.io/packed-used-0"
SEED = 20260101


@pytest.fixture(scope="module")
def cluster(make_cluster) -> Cluster:
    cluster = make_cluster(with_node=False)
    cluster.api.post("/api/v1/nodes", {"metadata": {"name": cluster.node_name}})
    return cluster


def publish(cluster: Cluster, word: object) -> str:
    words = {WORD: word}
    path = f"/api/v1/nodes/{cluster.node_name}/status"
    node = cluster.api.merge(path, {"status": {"capacity": words, "allocatable": words}})
    assert node["status"]["capacity"][WORD] == node["status"]["allocatable"][WORD]
    return str(node["status"]["capacity"][WORD])


def refusal(cluster: Cluster, word: object) -> ApiError:
    with pytest.raises(ApiError) as refused:
        publish(cluster, word)
    return refused.value


def test_every_53_bit_word_is_accepted(cluster):
    rng = random.Random(SEED)
    for word in [0, 1, 1000, 2**53 - 1, *(rng.getrandbits(53) for _ in range(60))]:
        text = publish(cluster, word)
        digits = text.rstrip("kMGTPE")
        assert int(digits) * 1000 ** " kMGTPE".index(text[len(digits) :] or " ") == word


@pytest.mark.parametrize("word", [LARGEST + 1, 2**54 - 1, 2**56 - 1])
def test_larger_words_are_refused(cluster, word):
    error = refusal(cluster, word)
    assert error.status == 422
    assert "must be an integer" in error.message


def test_most_random_54_bit_words_are_refused(cluster):
    rng = random.Random(SEED)
    refused = []
    for _ in range(60):
        try:
            publish(cluster, rng.getrandbits(54) | 1 << 53)
        except ApiError as error:
            refused.append(error.status)
    assert len(refused) > 45
    assert set(refused) == {422}


@pytest.mark.parametrize(
    ("word", "says"), [(-1, "must be greater than or equal to 0"), ("1500m", "must be an integer")]
)
def test_negative_and_fractional_words_are_refused(cluster, word, says):
    error = refusal(cluster, word)
    assert error.status == 422
    assert says in error.message


def test_a_word_that_is_no_quantity_is_refused(cluster):
    error = refusal(cluster, "many")
    assert error.status == 422
    assert "quantities must match the regular expression" in error.message
