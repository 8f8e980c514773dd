# SPDX-License-Identifier: Apache-2.0
# A Flower SuperNode that runs clients of fedac; docs/install.md shows how to build and run it.
FROM python:3.13-slim-trixie AS build
COPY . /source
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM python:3.13-slim-trixie
# What your app imports, besides NumPy and Flower. pip reads the index of PyTorch without CUDA from
# the variable.
ARG PACKAGES="torch"
ARG PIP_EXTRA_INDEX_URL
# A client needs neither the simulator's libraries nor Ray.
# hadolint ignore=DL3013,SC2086
RUN --mount=from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir "numpy>=1.26" "flwr>=1.41,<1.42" $PACKAGES \
    && pip install --no-cache-dir --no-deps /wheels/*.whl \
    && useradd --create-home --uid 1000 fedac
ENV FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
USER 1000
WORKDIR /home/fedac
ENTRYPOINT ["flower-supernode"]
