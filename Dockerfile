# One image for every process: `workbench serve`, `workbench engine`, `workbench migrate`, JupyterLab.
FROM python:3.11-slim AS installed

WORKDIR /srv/workbench

COPY requirements/up.txt requirements/up.txt
RUN pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements/up.txt

# The site of the documentation, which the API serves at /help
FROM installed AS site
COPY requirements/docs.txt requirements/docs.txt
RUN pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements/docs.txt
COPY mkdocs.yml CHANGELOG.md CONTRIBUTING.md README.md ./
COPY api api
COPY workbench workbench
COPY sql sql
COPY docs docs
COPY notebooks notebooks
COPY tools tools
COPY actions actions
COPY tests/mutants/README.md tests/mutants/README.md
RUN python -m mkdocs build --strict --site-dir build/site

FROM installed
RUN useradd --system --create-home --home-dir /home/workbench workbench

COPY pyproject.toml README.md LICENSE ./
COPY packaging packaging
COPY api api
COPY workbench workbench
COPY sql sql
COPY --from=site /srv/workbench/build/site build/site
RUN pip install --no-cache-dir --no-deps --no-build-isolation --no-index . ./packaging/server

COPY notebooks /home/workbench/notebooks
RUN install -d -o workbench -g workbench -m 0700 /home/workbench/data && chown -R workbench:workbench /home/workbench/notebooks

USER workbench
WORKDIR /home/workbench
ENV PYTHONUNBUFFERED=1 WORKBENCH_DATA_DIR=/home/workbench/data
EXPOSE 8000 8888
CMD ["workbench", "serve", "--host", "0.0.0.0", "--port", "8000", "--workers", "auto"]
