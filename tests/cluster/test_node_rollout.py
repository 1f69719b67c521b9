"""A daemon that stops and comes back, as in a rollout, while pods go on coming: none of them fails."""

import threading
import time

from tests.cluster.harness import Cluster, until
from tests.cluster.harness import workload as w

PODS = 12


def test_no_pod_fails_while_the_daemon_is_away(make_cluster):
    cluster: Cluster = make_cluster(w.cards(40960, 40960))

    def create() -> None:
        for number in range(PODS):
            cluster.create(w.pod(f"p{number}", w.container(gib=2)))
            time.sleep(1)

    creating = threading.Thread(target=create)
    creating.start()
    cluster.wait_running("p2")
    assert cluster.daemon.stop() == 0
    away = cluster.state()
    assert away.used == [card.size for card in away.cards]
    time.sleep(4)
    cluster.daemon.start()
    creating.join()
    for number in range(PODS):
        cluster.wait_running(f"p{number}")
    until(lambda: sum(cluster.state().used) == 2 * PODS, "the true words are back")
