# One image for every process: `workbench serve`, `workbench engine`, `workbench migrate`, JupyterLab.
FROM python:3.11-slim

RUN useradd --system --create-home --home-dir /home/workbench workbench
WORKDIR /srv/workbench

COPY requirements/up.txt requirements/up.txt
RUN pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements/up.txt

COPY pyproject.toml README.md LICENSE ./
COPY packaging packaging
COPY api api
COPY workbench workbench
COPY sql sql
RUN pip install --no-cache-dir --no-deps --no-build-isolation --no-index . ./packaging/server

COPY notebooks /home/workbench/notebooks
RUN install -d -o workbench -g workbench -m 0700 /home/workbench/data && chown -R workbench:workbench /home/workbench/notebooks

USER workbench
WORKDIR /home/workbench
ENV PYTHONUNBUFFERED=1 WORKBENCH_DATA_DIR=/home/workbench/data
EXPOSE 8000 8888
CMD ["workbench", "serve", "--host", "0.0.0.0", "--port", "8000", "--workers", "auto"]
