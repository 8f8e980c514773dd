# SPDX-License-Identifier: Apache-2.0
# The fedac command; docs/install.md shows how to build and run it.
FROM python:3.13-slim-trixie AS build
COPY . /source
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM python:3.13-slim-trixie
# Extras to install, such as [torch]. pip reads the index of PyTorch without CUDA from the variable.
ARG EXTRAS=""
ARG PIP_EXTRA_INDEX_URL
RUN --mount=from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(echo /wheels/*.whl)$EXTRAS" \
    && useradd --create-home --uid 1000 fedac \
    && install --directory --owner=fedac /work
# Caches that any user can write, for docker run --user.
ENV FEDAC_CACHE=/tmp/fedac MPLCONFIGDIR=/tmp/matplotlib
USER 1000
WORKDIR /work
ENTRYPOINT ["fedac"]
