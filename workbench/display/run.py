"""The page of one run, real or simulated: headline, path on the graph, messages, decisions and steps."""

from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from workbench.display.html import html
from workbench.language.filter import Verdict
from workbench.language.run import Message, State, Step

LOOKS = {
    State.COMPLETED: "good",
    State.EXITED: "good",
    State.DEAD: "bad",
    State.CANCELLED: "warn",
    State.RETRYING: "warn",
    State.PAUSED: "warn",
    None: "warn",
}
VerdictGroup = tuple[str, tuple[Verdict, ...]]
"""A title, and the verdicts on the filters of the trigger or of one condition."""


class RunPage(msgspec.Struct, frozen=True):
    """The contents of the page. `receives`: the title above the messages. `email_from`: the sender, if known."""

    headline: str
    subtitle: str
    note: str
    state: State | None
    picture: Markup | str
    receives: str
    messages: Sequence[Message]
    explanations: Sequence[VerdictGroup]
    steps: Sequence[Step]
    email_from: str = ""

    def html(self) -> str:
        """Return the page."""
        fields = msgspec.structs.asdict(self)
        state = fields.pop("state")
        return html(
            "run.html.j2", **fields, state=state.value if state else "not started", look=LOOKS.get(state, "busy")
        )


def explanations(verdicts: tuple[Verdict, ...], steps: Sequence[Step]) -> list[VerdictGroup]:
    """Return the verdicts on the filters of the trigger and of each condition, with the result as a title."""
    groups: list[VerdictGroup] = []
    if verdicts:
        passed = all(verdict.passed for verdict in verdicts)
        groups.append(("Why it starts" if passed else "Why it does not start", verdicts))
    for step in steps:
        if step.kind == "condition" and step.detail.get("verdicts"):
            inner = msgspec.convert(step.detail["verdicts"], tuple[Verdict, ...])
            title = f"Why “{inner[0].path} …” was {'true' if step.handle == 'true' else 'false'} ({step.node_id})"
            groups.append((title, inner))
    return groups
