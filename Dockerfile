# The image of the service, and with --target jobs that of the jobs that compute usage and invoices.
#
#   docker build --tag holdfast .
#   docker run --read-only --tmpfs /tmp --volume holdfast:/var/lib/holdfast --publish 9324:9324 holdfast
#
# Packages are those of the lock files, each checked by its hash.  Only the stage of the wheel has a compiler, which makes
# machine code of the hot modules; --build-arg COMPILED=no leaves them as they are, without a compiler in any stage.
# /usr/share/doc/holdfast/sbom.json (CycloneDX) lists the image's contents; Debian's packages are in dpkg.

ARG BASE=python:3.12-slim-bookworm
ARG COMPILED=yes
ARG S3=yes

# --- the packages that the service needs

FROM ${BASE} AS packages
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ONLY_BINARY=:all: PIP_NO_COMPILE=1 PIP_ROOT_USER_ACTION=ignore
COPY requirements/build.txt requirements/base.txt requirements/
RUN python -m venv /venv \
    && /venv/bin/pip install --quiet --require-hashes -r requirements/build.txt -r requirements/base.txt

# --- the wheel, for the Python and the processor of the base; mypy reads the types of the packages

FROM packages AS wheel
ARG COMPILED
COPY requirements/compiled.txt requirements/
RUN case $COMPILED in \
        yes) apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev \
            && /venv/bin/pip install --quiet --require-hashes -r requirements/compiled.txt ;; \
        no) ;; \
        *) echo "COMPILED is yes or no, not $COMPILED" >&2 && exit 1 ;; \
    esac
COPY pyproject.toml setup.py README.md LICENSE ./
COPY requirements/*.in requirements/
COPY holdfast holdfast
COPY frontend frontend
COPY metadata_service metadata_service
COPY backend backend
COPY auth auth
COPY ratelimit ratelimit
COPY billing billing
COPY spark_analytics spark_analytics
COPY telemetry telemetry
RUN if [ "$COMPILED" = yes ]; then export HOLDFAST_COMPILED=1; fi \
    && PIP_ONLY_BINARY= /venv/bin/pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir /wheel .

# --- the environment, built with tools that stay behind

FROM packages AS build
COPY requirements/sbom.txt requirements/
RUN python -m venv /sbom && /sbom/bin/pip install --quiet --require-hashes -r requirements/sbom.txt
COPY pyproject.toml ./
COPY scripts/finish-environment scripts/
COPY --from=wheel /wheel /wheel
RUN /venv/bin/pip install --quiet --no-deps --no-index --find-links /wheel holdfast

FROM build AS service-environment
RUN scripts/finish-environment /venv

FROM build AS jobs-environment
COPY requirements/billing.txt requirements/spark.txt requirements/
# PySpark is published as source alone, all of it Python and Java that is built already.
RUN PIP_ONLY_BINARY= /venv/bin/pip install --quiet --no-build-isolation --only-binary :all: --no-binary pyspark \
    --require-hashes -r requirements/billing.txt -r requirements/spark.txt
# What Spark's driver runs where Kubernetes has it in a pod of its own: the jobs, by a name that Python's version is not in.
RUN ln -s "$(/venv/bin/python -I -c 'import pathlib, spark_analytics; print(pathlib.Path(spark_analytics.__file__).with_name("__main__.py"))')" /venv/jobs.py
RUN scripts/finish-environment /venv

# --- what Spark needs for a lake at s3://: 700 MB, without which (--build-arg S3=no) each job fetches it when it begins

FROM jobs-environment AS jobs-environment-whole
ARG S3
RUN if [ "$S3" = yes ]; then \
        apt-get update -qq && apt-get install -y -qq --no-install-recommends default-jre-headless \
        && /venv/bin/python -m spark_analytics.s3_jars; \
    fi

# --- what both targets have

FROM ${BASE} AS runtime
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* \
    && groupadd --gid 10001 holdfast \
    && useradd --uid 10001 --gid 10001 --no-log-init --home-dir /var/lib/holdfast --shell /usr/sbin/nologin holdfast \
    && install --directory --owner 10001 --group 10001 --mode 0700 /var/lib/holdfast
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /var/lib/holdfast
USER 10001:10001
LABEL org.opencontainers.image.title=Holdfast \
      org.opencontainers.image.description="A durable message queue service that speaks Amazon SQS's protocol" \
      org.opencontainers.image.licenses=Apache-2.0

# --- jobs: python -m spark_analytics, with the job as argument

FROM runtime AS jobs
USER 0:0
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends default-jre-headless libpango-1.0-0 libpangoft2-1.0-0 libharfbuzz-subset0 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*
USER 10001:10001
ENV SPARK_LOCAL_DIRS=/tmp MPLCONFIGDIR=/tmp
COPY --from=jobs-environment-whole /venv /venv
COPY --from=jobs-environment /usr/share/doc/holdfast /usr/share/doc/holdfast
ENTRYPOINT ["tini", "--", "python", "-m", "spark_analytics"]

# --- service: holdfast, with the role as argument

FROM runtime AS service
COPY --from=service-environment /venv /venv
COPY --from=service-environment /usr/share/doc/holdfast /usr/share/doc/holdfast
VOLUME /var/lib/holdfast
EXPOSE 9324
ENTRYPOINT ["tini", "--", "holdfast"]
CMD ["serve", "--host", "0.0.0.0", "--data", "/var/lib/holdfast/data"]
