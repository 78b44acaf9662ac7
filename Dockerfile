# syntax=docker/dockerfile:1
# The service in one image: not root, no torch, no compiler (the build stage has one, for our own operators). `--build-arg RUNTIME=gpu` takes the CUDA runtime.
ARG PYTHON=3.11-slim-bookworm

FROM python:${PYTHON} AS build
ARG RUNTIME=cpu
WORKDIR /src
RUN apt-get update && apt-get install --yes --no-install-recommends g++
COPY pyproject.toml hatch_build.py constraints.txt README.md ./
COPY model model
COPY service service
COPY training training
# A prefix of its own, so that the next stage copies what was installed and nothing else.
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --disable-pip-version-check --constraint constraints.txt --prefix /install ".[${RUNTIME}]"

FROM python:${PYTHON}
# tini reaps what Ray's processes leave behind; KubeRay's probes call wget.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini wget \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home dragoman
# Into /usr/local, not into a virtual environment: a login shell, which KubeRay may use, resets PATH.
COPY --from=build /install /usr/local
# PYTHONSAFEPATH is `python -P` for every process: a stray model.py in the working folder shadows nothing.
ENV PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    DRAGOMAN_HOST=0.0.0.0 \
    DRAGOMAN_PORT=8000
USER dragoman
WORKDIR /home/dragoman
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["wget", "--quiet", "--tries=1", "--timeout=4", "--output-document=/dev/null", "http://127.0.0.1:8000/healthz"]
ENTRYPOINT ["tini", "--", "dragoman"]
CMD ["serve"]
