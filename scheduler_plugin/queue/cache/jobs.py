"""Jobs as the queue reads them: how many pods they make, for the first stage. Pure."""

from dataclasses import dataclass

from allocator.names import POD_JOB
from allocator.texts import count_of
from kubeapi.objects import Job
from scheduler_plugin.queue.cache.pods import read_data


@dataclass(frozen=True, slots=True)
class PodMaker:
    """A Job, as far as it says how many pods a first stage has.

    Attributes:
        name: With its namespace.
        job: Job that its pods name in gpupack.io/job, prefixed with the namespace; empty for none.
        reads_data: Its pods name data, so they are a first stage.
        completions: Pods that must succeed; None: only the Job's own condition says when it is complete.
        complete: Enough pods of the Job have succeeded.
    """

    uid: str
    name: str
    job: str
    reads_data: bool
    completions: int | None
    succeeded: int
    complete: bool
    failed: bool

    @property
    def missing(self) -> str:
        """Say what its pods have not done yet; empty for nothing."""
        if self.complete or (self.completions is not None and self.succeeded >= self.completions):
            return ""
        if self.completions is not None:
            pods = f"{self.succeeded} of {self.completions} pods"
        else:
            pods = count_of(self.succeeded, "pod")
        if self.failed:
            return f"Job {self.name} has failed, with {pods} that succeeded"
        if self.completions is None:
            return f"Job {self.name} is not complete: it has {pods} that succeeded"
        return f"Job {self.name} has {pods} that succeeded"


def read_job(job: Job) -> PodMaker:
    meta, notes = job.metadata, job.spec.template.metadata.annotations or {}
    name = notes.get(POD_JOB, "")
    states = {each.type for each in job.status.conditions or () if each.is_true}
    return PodMaker(
        uid=meta.uid,
        name=meta.full_name,
        job=f"{meta.namespace}/{name}" if name else "",
        reads_data=bool(read_data(notes)),
        completions=job.spec.completions,
        succeeded=job.status.succeeded,
        complete=bool(states & {"Complete", "SuccessCriteriaMet"}),
        failed=bool(states & {"Failed", "FailureTarget"}),
    )
