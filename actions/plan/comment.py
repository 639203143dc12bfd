"""Writes a plan as a comment on a pull request, or updates the comment that has the plan of the same folder.

Argument: the file with the plan. CODE is the exit code of the command that wrote it.
"""

import json
import os
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

MAX_CHARACTERS = 60_000  # of 65,536 that a comment may have
PAGE_SIZE = 100
TIMEOUT_S = 30
NOT_FOUND = 404
NO_CHANGES, CHANGES = "0", "2"  # the exit codes of `plan`; any other is a failure
TITLES = {NO_CHANGES: "`apply` would change nothing in {folder}", CHANGES: "What `apply` would change in {folder}"}


def main(plan: str) -> None:
    folder, code = os.environ["FOLDER"], os.environ["CODE"]
    marker = f"<!-- event-workbench plan: {re.sub('[^A-Za-z0-9_./-]', '-', folder)} -->"
    body = f"{marker}\n{comment(folder, plan, code)}"
    comments = with_marker(marker)
    if comments:
        request("PATCH", f"comments/{comments[0]}", {"body": body})
    elif code != NO_CHANGES:
        own = request("POST", f"{os.environ['PULL_REQUEST']}/comments", {"body": body})["id"]
        comments = with_marker(marker)
        if comments and comments[0] < own:  # of a run at the same time, which may have an older plan
            request("PATCH", f"comments/{comments[0]}", {"body": body})
            request("DELETE", f"comments/{own}")


def comment(folder: str, plan: str, code: str) -> str:
    """Return the text of the comment. Texts of automations are in a code block, where they are not Markdown."""
    for name in ("WORKBENCH_KEY", "WORKBENCH_URL"):
        if secret := os.environ[name].strip().rstrip("/"):
            plan = plan.replace(secret, "***")
    if len(plan) > MAX_CHARACTERS:
        plan = f"{plan[:MAX_CHARACTERS]}\n… the log of the run has the whole plan"
    ticks = max([2, *(len(run) for run in re.findall("`+", plan))]) + 1
    title = TITLES.get(code, "The plan of {folder} failed").format(folder=folder)
    return f"### {title}\n\n{'`' * ticks}text\n{plan.rstrip()}\n{'`' * ticks}\n"


def with_marker(marker: str) -> list[int]:
    """Return the ids of the comments with the marker, oldest first. Only bots count: people could forge a plan."""
    ids: list[int] = []
    page = 1
    while True:
        path = f"{os.environ['PULL_REQUEST']}/comments?per_page={PAGE_SIZE}&page={page}"
        comments = request("GET", path)
        bots = [comment for comment in comments if comment["user"]["type"] == "Bot"]
        ids += [comment["id"] for comment in bots if comment["body"].startswith(marker)]
        if len(comments) < PAGE_SIZE:
            return sorted(ids)
        page += 1


def request(method: str, path: str, body: dict[str, str] | None = None) -> Any:
    url = f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}/issues/{path}"
    headers = {
        "Authorization": f"Bearer {os.environ['TOKEN']}",
        "Accept": "application/vnd.github+json",
        "X-GitHub-Api-Version": "2022-11-28",
    }
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(  # noqa: S310  the URL is GitHub's
            urllib.request.Request(url, data, headers, method=method),  # noqa: S310
            timeout=TIMEOUT_S,
        ) as response:
            return json.loads(response.read() or "null")
    except urllib.error.HTTPError as error:
        if (method, error.code) == ("DELETE", NOT_FOUND):
            return None  # the other run was faster
        hint = " Does the workflow have `permissions: pull-requests: write`?" if error.code in (401, 403) else ""
        raise SystemExit(f"GitHub answered {error.code} to {method} {path}.{hint}") from None


if __name__ == "__main__":
    main(Path(sys.argv[1]).read_text(encoding="utf-8"))
