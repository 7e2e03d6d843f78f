# The same `recpool up` as on a bare machine, in the foreground.
#   docker build -t recpool .
#   docker run --init --shm-size=512m -p 127.0.0.1:8000:8000 -v recpool:/home/recpool/var recpool
FROM python:3.11-slim

RUN useradd --create-home recpool
USER recpool
WORKDIR /home/recpool/app

# Dependencies first: they change less often than the code.
COPY --chown=recpool pyproject.toml constraints.txt README.md ./
COPY --chown=recpool configs configs
COPY --chown=recpool features features
COPY --chown=recpool recall recall
COPY --chown=recpool ranking ranking
COPY --chown=recpool pool pool
COPY --chown=recpool serving serving
COPY --chown=recpool deployments deployments
COPY --chown=recpool benchmarks benchmarks
RUN python -m venv /home/recpool/venv \
    && /home/recpool/venv/bin/pip install --no-cache-dir -c constraints.txt -e . \
    && mkdir -p /home/recpool/var

ENV PATH=/home/recpool/venv/bin:$PATH \
    RECPOOL_HOME=/home/recpool/var \
    RECPOOL_SERVING__HOST=0.0.0.0
VOLUME /home/recpool/var
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=10m \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=2)"]
CMD ["recpool", "up", "--block"]
