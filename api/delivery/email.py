"""Emails: through the mail server of the settings, or into a maildir where there is none."""

from api.delivery.mail import Mailer
from api.delivery.maildir import Maildir
from api.delivery.smtp import Smtp
from api.settings import Settings

FOLDER = "mail"  # in the data directory


def mailer(settings: Settings) -> Mailer:
    """Return the way emails leave this installation; the caller closes it."""
    if settings.smtp is None:
        return Maildir(settings.data_dir / FOLDER, settings.email_from)
    return Smtp(settings.smtp, settings.email_from)
