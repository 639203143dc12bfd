"""Metrics of the service's processes, for Prometheus and for `workbench top`.

Every process writes its metrics to a file in the data folder once a second (`serve.publish`). All processes of this
machine are read from these files (`serve.read_published`); with WORKBENCH_METRICS set, any process serves them all. The
public API serves no metrics.
"""
