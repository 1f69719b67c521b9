"""One script of API calls for the real kube-apiserver and the stand-in, and what they answered.

`play` runs STEPS against any API server and returns a transcript in which everything that must differ
(UIDs, versions, times) is masked. `apiserver_answers.json` is the transcript of kube-apiserver 1.37.1
(`answers.py` has the older ones): the stand-in and the cluster are both compared with it. A stand-in that
drifts fails here, and a new Kubernetes that answers otherwise fails there.

The script keeps to objects of its own (names with "script-", label script=yes, a scheduler that does not
exist), so it may run beside a kube-scheduler and controllers.
"""

from tests.scripts.apiserver_play import ANSWERS, Step, Target, as_recording, play, recorded
from tests.scripts.apiserver_steps_nodes import NODE_STEPS
from tests.scripts.apiserver_steps_pods import POD_STEPS
from tests.scripts.apiserver_steps_views import VIEW_STEPS

STEPS: tuple[Step, ...] = (*NODE_STEPS, *POD_STEPS, *VIEW_STEPS)

__all__ = ["ANSWERS", "STEPS", "Step", "Target", "as_recording", "play", "recorded"]
