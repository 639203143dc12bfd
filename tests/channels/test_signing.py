"""Standard Webhooks 1.0: its published vector, and its own library as the receiver (docs/trust.md J1, J3, J4)."""

from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from api.channels import signing

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = b'{"test": 2432232314}'
ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"


def now(ago: timedelta = timedelta()) -> int:
    return int((datetime.now(UTC) - ago).timestamp())


def test_the_published_vector() -> None:
    assert signing.signature(SECRET, ID, 1614265330, BODY) == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_receiver_accepts_what_we_sign() -> None:
    secret = signing.new_secret(bytes(range(32)))
    assert Webhook(secret).verify(BODY, signing.headers([secret], ID, now(), BODY)) == {"test": 2432232314}


def test_a_receiver_refuses_a_request_captured_six_minutes_ago() -> None:
    with pytest.raises(WebhookVerificationError, match="too old"):
        Webhook(SECRET).verify(BODY, signing.headers([SECRET], ID, now(timedelta(minutes=6)), BODY))


@pytest.mark.parametrize(("body", "message_id"), [(b'{"test": 2432232315}', ID), (BODY, "msg_another")])
def test_a_receiver_refuses_a_changed_request(body: bytes, message_id: str) -> None:
    headers = signing.headers([SECRET], ID, now(), BODY) | {"webhook-id": message_id}
    with pytest.raises(WebhookVerificationError, match="No matching"):
        Webhook(SECRET).verify(body, headers)


def test_during_a_roll_a_receiver_with_either_secret_accepts() -> None:
    fresh = signing.new_secret(bytes(32))
    headers = signing.headers([fresh, SECRET], ID, now(), BODY)
    assert headers["webhook-signature"].count("v1,") == 2
    for secret in (fresh, SECRET):
        Webhook(secret).verify(BODY, headers)
