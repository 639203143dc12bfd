"""One run of an automation, real or simulated, as a page: headline, path on the graph, messages, reasons, steps."""

from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from api.language.effect import Message
from api.language.filter import Verdict
from api.language.run import State, Step
from workbench.display.page import html

LOOKS = {
    State.COMPLETED: "good",
    State.EXITED: "good",
    State.DEAD: "bad",
    State.CANCELLED: "warn",
    State.RETRYING: "warn",
    State.PAUSED: "warn",
    None: "warn",
}
Why = tuple[str, tuple[Verdict, ...]]


class RunPage(msgspec.Struct, frozen=True):
    """What is shown of a run. `email_from`: the address of the sender, where it is known."""

    headline: str
    subtitle: str
    note: str
    state: State | None
    picture: Markup | str
    receives: str
    messages: Sequence[Message]
    whys: Sequence[Why]
    steps: Sequence[Step]
    email_from: str = ""

    def html(self) -> str:
        """Return the page."""
        return html(
            "run.html.j2",
            headline=self.headline,
            subtitle=self.subtitle,
            note=self.note,
            state=self.state.value if self.state else "not started",
            look=LOOKS.get(self.state, "busy"),
            picture=self.picture,
            receives=self.receives,
            messages=self.messages,
            whys=self.whys,
            steps=self.steps,
            email_from=self.email_from,
        )


def whys(verdicts: tuple[Verdict, ...], steps: Sequence[Step]) -> list[Why]:
    """Return why the trigger and each condition went as they did: a title, and the verdicts on its filters."""
    found: list[Why] = []
    if verdicts:
        fired = all(each.passed for each in verdicts)
        found.append(("Why it starts" if fired else "Why it does not start", verdicts))
    for step in steps:
        if step.kind == "condition" and step.detail.get("verdicts"):
            inside = msgspec.convert(step.detail["verdicts"], tuple[Verdict, ...])
            found.append((f"Why {step.node_id} says {'yes' if step.handle == 'true' else 'no'}", inside))
    return found
