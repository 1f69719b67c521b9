# One image for every command: docker build -t gpupack:0.1.0 .
FROM python:3.11-slim AS build
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

FROM python:3.11-slim
COPY --from=build /opt/gpupack /opt/gpupack
ENV PATH=/opt/gpupack/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# Only the node daemon needs root, for the kubelet's sockets; its DaemonSet says so.
USER 65532:65532
ENTRYPOINT ["gpupack"]
