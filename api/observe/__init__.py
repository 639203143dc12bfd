"""What a process tells about itself in numbers, for Prometheus and for `workbench top`.

Every process writes its numbers into a file of the data folder, once a second (`published`). Whoever wants to see all
processes of this machine reads the files (`merged`); with WORKBENCH_METRICS set, any process answers for all (`listener`).
Nothing is served where the API is.
"""
