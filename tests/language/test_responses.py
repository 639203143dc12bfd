"""A notebook reads the responses of a later server, which may have values that it does not know."""

import msgspec
import pytest

from workbench.language import responses


@pytest.mark.parametrize(
    ("kind", "response"),
    [
        (responses.TestMessageView, {"nodeId": "n", "channel": "sms", "outcome": "delayed"}),
        (
            responses.TimelineItemView,
            {"kind": "opt_out", "id": "1", "at": "2026-01-01T00:00:00Z", "sentence": "", "detail": {}},
        ),
    ],
)
def test_an_unknown_value_is_read(kind: type[msgspec.Struct], response: dict[str, object]) -> None:
    assert isinstance(msgspec.convert(response, kind), kind)


def test_the_schema_lists_the_known_values() -> None:
    schema = msgspec.json.schema(responses.TestMessageView)["$defs"]["TestMessageView"]
    assert schema["properties"]["outcome"]["enum"] == ["sent", "failed", "unknown", "skipped"]
