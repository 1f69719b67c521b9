# One image for every command: docker build -t gpupack:0.1.0 .
# The list for all architectures; .github/dependabot.yml proposes newer ones.
FROM python:3.11-slim-bookworm@sha256:0bee7276f83efd4a1ee05bbbf4281d95ed28e079220a9457f25a93e3f1e3c31b AS python

FROM python AS build
WORKDIR /src
RUN python -m venv /opt/gpupack
COPY requirements.lock ./
RUN /opt/gpupack/bin/pip install --no-cache-dir --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY allocator allocator
COPY kubeapi kubeapi
COPY deviceplugin deviceplugin
COPY scheduler_plugin scheduler_plugin
COPY gpupack gpupack
COPY standins standins
RUN /opt/gpupack/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
 && /opt/gpupack/bin/gpupack --version

FROM python
COPY --from=build /opt/gpupack /opt/gpupack
ENV PATH=/opt/gpupack/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# Only the node daemon needs root, for the kubelet's sockets; its DaemonSet says so.
USER 65532:65532
ENTRYPOINT ["gpupack"]
