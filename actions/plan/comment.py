"""Writes a plan as a comment on a pull request, or updates the comment that has the plan of the same folder.

Argument: the file with the plan. It needs no package, because it also reports that the installation of one failed.
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


def main(plan: str) -> None:
    folder, has_changes = os.environ["FOLDER"], os.environ["CHANGES"] == "true"
    marker = f"<!-- event-workbench plan: {re.sub('[^A-Za-z0-9_./-]', '-', folder)} -->"
    body = f"{marker}\n{comment(folder, plan, has_changes=has_changes)}"
    comments = with_marker(marker)
    if comments:
        request("PATCH", f"comments/{comments[0]}", {"body": body})
    elif has_changes:
        own = request("POST", f"{os.environ['PULL_REQUEST']}/comments", {"body": body})["id"]
        comments = with_marker(marker)
        if comments and comments[0] < own:  # of a run at the same time, which may have an older plan
            request("PATCH", f"comments/{comments[0]}", {"body": body})
            request("DELETE", f"comments/{own}")


def comment(folder: str, plan: str, *, has_changes: bool) -> str:
    """Return the text of the comment. Texts of automations are in a code block, where they are not Markdown."""
    for name in ("WORKBENCH_KEY", "WORKBENCH_URL"):
        plan = plan.replace(os.environ[name], "***")
    if len(plan) > MAX_CHARACTERS:
        plan = f"{plan[:MAX_CHARACTERS]}\n… the log of the run has the whole plan"
    ticks = max([2, *(len(run) for run in re.findall("`+", plan))]) + 1
    title = "What `apply` would change" if has_changes else "`apply` would change nothing"
    return f"### {title} in {folder}\n\n{'`' * ticks}text\n{plan.rstrip()}\n{'`' * ticks}\n"


def with_marker(marker: str) -> list[int]:
    """Return the ids of the comments with the marker, oldest first. Only bots count: people could forge a plan."""
    ids: list[int] = []
    page = 1
    while True:
        path = f"{os.environ['PULL_REQUEST']}/comments?per_page={PAGE_SIZE}&page={page}"
        comments = request("GET", path)
        ids += [each["id"] for each in comments if each["user"]["type"] == "Bot" and each["body"].startswith(marker)]
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
