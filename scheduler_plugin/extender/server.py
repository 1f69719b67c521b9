"""The extender over HTTP."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import structlog
from aiohttp import web

from kubeapi.lease import SOLE_PROCESS, LeaderStatus
from kubeapi.serving import HEALTH, Handler, serve_health, serve_metrics
from scheduler_plugin.binding.batch_committer import BatchCommitter
from scheduler_plugin.binding.batch_protocol import CommitOutcome, CommitReply, decode_commit_call
from scheduler_plugin.binding.batch_protocol import encode as encode_commit
from scheduler_plugin.binding.binder import Binder
from scheduler_plugin.cache.watcher import Watcher
from scheduler_plugin.errors import FAULT, ProtocolError
from scheduler_plugin.extender.fast_server import VerbAnswer
from scheduler_plugin.extender.filter_reply import FilterReply
from scheduler_plugin.extender.metrics import Metrics
from scheduler_plugin.extender.pod_events import PodReporter
from scheduler_plugin.extender.protocol import BindArgs, decode_bind, encode_bind, encode_filter_error
from scheduler_plugin.extender.retry import RefusedPodRetrier
from scheduler_plugin.extender.stale_refusals import WAIT_S, StaleRefusalWait
from scheduler_plugin.extender.verbs import Extender
from scheduler_plugin.preemption.preemptor import Preemptor
from scheduler_plugin.scheduling.placing import POLICY_FAULTS

MAX_BODY: Final = 16 * 2**20
"""Bytes of a request: 20 000 long node names, or some hundred whole nodes."""

BIND_WAIT_S: Final = 1.0
"""How long bind waits for a pod that our view does not have yet."""

OPEN: Final = HEALTH | {"/metrics"}
"""What may be read without a client certificate; probes and Prometheus have none."""

STANDBY: Final = "this gpupack scheduler is not the leader; the leader answers"

_ENCODE_ERROR: Final = {"/filter": encode_filter_error, "/bind": encode_bind}
"""Verbs whose answer has a place for an error."""

METRICS: Final = web.AppKey("metrics", Metrics)

_WHOLE: Final = "; allowed: a whole one, encoded as its headers say"

_TEXT: Final = "text/plain; charset=utf-8"

Verb = Callable[[bytes], Awaitable[VerbAnswer]]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ExtenderService:
    """The state that the handlers work on.

    Attributes:
        stale_refusal_wait: Decides for which refused pods to wait a moment.
        leadership: Whether this process answers verbs, or stands by.
        preemptor: Evicts pods where kube-scheduler's own preemption sees no need; None disables it.
        batch: Binds pods that a queue hands over; None: no queue may.
        standby_is_ready: True if a label on the pod says who leads; otherwise readiness does.
    """

    extender: Extender
    binder: Binder
    watcher: Watcher
    metrics: Metrics
    clock: Callable[[], float]
    stale_refusal_wait: StaleRefusalWait
    reporter: PodReporter
    retrier: RefusedPodRetrier
    leadership: LeaderStatus = SOLE_PROCESS
    preemptor: Preemptor | None = None
    batch: BatchCommitter | None = None
    standby_is_ready: bool = False

    async def answer(self, path: str, body: bytes) -> VerbAnswer:
        """Answer a verb, whatever its body is and whatever happens.

        An invalid body gets one clear line with status 400 or 422; an error of ours becomes the verb's error.
        A standby answers no verb and closes the connection, because a kept connection would lead to it for
        ever.
        """
        if not self.leadership.is_leader:
            self.metrics.errors.labels(path.strip("/")).inc()
            log.warning("request refused", path=path, error=STANDBY)
            return VerbAnswer(f"{STANDBY}\n".encode(), status=503, content_type=_TEXT, is_last=True)
        try:
            return await self.verbs[path](body)
        except ProtocolError as error:
            self.metrics.errors.labels(path.strip("/")).inc()
            log.warning("request refused", path=path, error=str(error))
            return VerbAnswer(f"{error}\n".encode(), status=error.status, content_type=_TEXT)
        except POLICY_FAULTS as error:
            log.warning("a policy failed", path=path, error=str(error))
            return self._answer_error(path, str(error))
        except Exception:
            log.exception("call failed", path=path)
            return self._answer_error(path, FAULT)

    def _answer_error(self, path: str, why: str) -> VerbAnswer:
        """Answer with an error in a 200 body: kube-scheduler ignores the text of other statuses."""
        self.metrics.errors.labels(path.strip("/")).inc()
        encode = _ENCODE_ERROR.get(path)
        if encode is None:
            return VerbAnswer(f"{why}\n".encode(), status=500, content_type=_TEXT)
        return VerbAnswer(encode(why))

    def record_cut_off(self, path: str) -> None:
        """Count and log a call whose client disconnected before the body was complete."""
        self.metrics.errors.labels(path.strip("/")).inc()
        log.warning("request refused", path=path, error=f"body cannot be read: its client went away{_WHOLE}")

    @property
    def verbs(self) -> dict[str, Verb]:
        verbs: dict[str, Verb] = {
            "/filter": self.filter,
            "/prioritize": self.prioritize,
            "/bind": self.bind,
            "/preempt": self.preempt,
        }
        return verbs if self.batch is None else {**verbs, "/commit": self.commit}

    async def filter(self, body: bytes) -> VerbAnswer:
        began = perf_counter()
        reply = self.extender.filter(body, self.clock(), self.watcher.stale)
        took_s = perf_counter() - began
        if reply.refused:
            reply = await self._filter_again(body, reply)
        uid = reply.refused or reply.passed
        if self.preemptor is not None and (asked := uid or reply.gang_refused):
            self.preemptor.record_refusal(asked, reply.evictable)
        if uid:
            self.retrier.record_reply(reply)
        self.extender.record_attempt(reply)
        self.reporter.report_filter(reply)
        return self._finish("filter", perf_counter() - took_s, reply.answer)

    async def _filter_again(self, body: bytes, refusal: FilterReply) -> FilterReply:
        """Before refusing a pod again, wait for events that kube-scheduler may have seen before us."""
        reply, patience, uid = refusal, self.stale_refusal_wait, refusal.refused

        def passes() -> bool:
            nonlocal reply
            reply = self.extender.filter(body, self.clock(), self.watcher.stale)
            return not reply.refused

        if patience.should_wait(uid):
            if await patience.activity.wait_until(passes, WAIT_S):
                patience.record_passed(uid)
                return reply
            patience.record_vain_wait()
        patience.record_refused(uid)
        return reply

    async def prioritize(self, body: bytes) -> VerbAnswer:
        began = perf_counter()
        answer = self.extender.prioritize(body, self.clock(), self.watcher.stale)
        return self._finish("prioritize", began, answer)

    async def bind(self, body: bytes) -> VerbAnswer:
        began = perf_counter()
        args = decode_bind(body)
        # kube-scheduler may have read of the pod, or of its last gate's removal, before us.
        await self.stale_refusal_wait.activity.wait_until(
            lambda: self._is_admitted(args.pod_uid), BIND_WAIT_S
        )
        stale = self.watcher.stale
        error = stale or await self.binder.bind(args.pod_namespace, args.pod_name, args.pod_uid, args.node)
        if error:
            if not stale:  # else nothing is known against the node
                self.extender.record_bind_failure(args.pod_uid, args.node, self.clock())
            self.metrics.errors.labels("bind").inc()
            log.warning("not bound", pod=f"{args.pod_namespace}/{args.pod_name}", node=args.node, error=error)
        else:
            self.reporter.report_bound(args, perf_counter() - began)
        return self._finish("bind", began, encode_bind(error))

    def _is_admitted(self, uid: str) -> bool:
        pod = self.extender.state.pods.get(uid)
        return pod is not None and not pod.is_gated

    async def commit(self, body: bytes) -> VerbAnswer:
        """POST /commit: pods of batch mode, each with its list of nodes."""
        began = perf_counter()
        call = decode_commit_call(body)
        results = await self.batch.commit(call) if self.batch is not None else []
        pods = (pod for group in call.groups for pod in group)
        for pod, result in zip(pods, results, strict=True):
            self.metrics.committed.labels(result.outcome.value).inc()
            if result.outcome is CommitOutcome.BOUND:
                bound = BindArgs(pod.name, pod.namespace, pod.uid, result.node)
                self.reporter.report_bound(bound, perf_counter() - began)
        return self._finish("commit", began, encode_commit(CommitReply(tuple(results))))

    async def preempt(self, body: bytes) -> VerbAnswer:
        began = perf_counter()
        return self._finish("preempt", began, self.extender.preempt(body, self.clock(), self.watcher.stale))

    def explain_not_ready(self) -> str:
        """Say why the view is not complete and fresh; without a leader's label only the leader is ready."""
        is_ready = self.standby_is_ready or self.leadership.is_leader
        return self.watcher.stale or ("" if is_ready else "not the leader")

    async def render_metrics(self) -> bytes:
        return self.metrics.render()

    async def any_form(self, request: web.Request) -> web.Response:
        """Answer a verb whose request has a form that the fast server leaves to aiohttp."""
        answer = await self.answer(request.path, await request.read())
        headers = {"Content-Type": answer.content_type}
        if answer.timing:
            headers["Server-Timing"] = answer.timing
        response = web.Response(body=answer.body, status=answer.status, headers=headers)
        if answer.is_last:
            response.force_close()
        return response

    def _finish(self, verb: str, began: float, answer: bytes) -> VerbAnswer:
        took_s = perf_counter() - began
        self.metrics.handled.labels(verb).observe(took_s)
        return VerbAnswer(answer, took_s)


@web.middleware
async def _explain(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn errors of a request that reaches no verb into one clear line."""
    try:
        return await handler(request)
    except web.HTTPBadRequest as error:
        request.app[METRICS].errors.labels(request.path.strip("/")).inc()
        log.warning("request refused", path=request.path, error=(error.text or "").strip())
        raise
    except web.HTTPRequestEntityTooLarge as error:
        size, most = request.content_length, f"more than {MAX_BODY}"
        # The length is that of what was sent, which may be packed.
        is_packed = size is not None and size <= MAX_BODY
        what = f"that unpacks to {most}" if is_packed else f"of {size or most}"
        error.text = f"body {what} bytes; allowed: {MAX_BODY}\n"
        raise
    except web.HTTPException:
        raise
    except Exception:
        log.exception("call failed", path=request.path)
        return web.Response(text=f"{FAULT}\n", status=500)


@web.middleware
async def _only_known_clients(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse verbs to clients without a certificate; an unknown authority already fails the handshake."""
    transport = request.transport
    if request.path not in OPEN and (transport is None or not transport.get_extra_info("peercert")):
        return web.Response(
            text="allowed: a client certificate of the authority given at start\n", status=403
        )
    return await handler(request)


def make_app(service: ExtenderService, *, only_known_clients: bool = False) -> web.Application:
    guards = [_only_known_clients] if only_known_clients else []
    app = web.Application(client_max_size=MAX_BODY, middlewares=[*guards, _explain])
    app[METRICS] = service.metrics
    app.add_routes(
        [
            *(web.post(path, service.any_form) for path in service.verbs),
            *serve_health(service.explain_not_ready),
            serve_metrics(service.render_metrics),
        ]
    )
    return app
