"""What a user would write instead: FastAPI, pydantic and SQLAlchemy, one event per transaction.

It follows the documentation of these libraries and is as fast as they allow: asynchronous, with uvloop and httptools, a
pool of open connections, one query for all identifiers, a unique constraint for idempotency, and no write when nothing
changed. It answers after the commit, as the API does. It has no encrypted emails, batches, dry runs or rate limit.
"""

import hashlib
import os
import re
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, HTTPException
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.alias_generators import to_camel
from sqlalchemy import DateTime, ForeignKey, UniqueConstraint, or_, select
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")

engine = create_async_engine(
    os.environ["DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://"),
    pool_size=int(os.environ["BENCH_POOL"]),
    max_overflow=0,
)
sessions = async_sessionmaker(engine, expire_on_commit=False)


class Base(DeclarativeBase):
    type_annotation_map = {  # noqa: RUF012  SQLAlchemy's own form
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB,
        list[dict[str, Any]]: JSONB,
    }


class ApiKey(Base):
    __tablename__ = "api_keys"
    key_hash: Mapped[str] = mapped_column(primary_key=True)
    org_id: Mapped[int]
    revoked_at: Mapped[datetime | None]


class Contact(Base):
    __tablename__ = "contacts"
    __table_args__ = (
        UniqueConstraint("org_id", "wallet_address"),
        UniqueConstraint("org_id", "email"),
        UniqueConstraint("org_id", "external_id"),
    )
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    org_id: Mapped[int]
    wallet_address: Mapped[str | None]
    email: Mapped[str | None]
    external_id: Mapped[str | None]
    attributes: Mapped[dict[str, Any]]


class StoredEvent(Base):
    __tablename__ = "events"
    __table_args__ = (UniqueConstraint("org_id", "idempotency_key"),)
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    org_id: Mapped[int]
    contact_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("contacts.id"), index=True)
    event: Mapped[str] = mapped_column(index=True)
    payload: Mapped[dict[str, Any]]
    idempotency_key: Mapped[str]
    occurred_at: Mapped[datetime]
    created_at: Mapped[datetime]


class Automation(Base):
    __tablename__ = "automations"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    org_id: Mapped[int] = mapped_column(index=True)
    active: Mapped[bool]
    event: Mapped[str]
    filters: Mapped[list[dict[str, Any]]]


class Entry(Base):
    __tablename__ = "entries"
    __table_args__ = (UniqueConstraint("automation_id", "event_id"),)
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    org_id: Mapped[int]
    automation_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("automations.id"))
    event_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("events.id"))
    state: Mapped[str]


class _Body(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True)


class Identifiers(_Body):
    email: Annotated[str, Field(max_length=320)] | None = None
    wallet_address: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    external_id: Annotated[str, Field(min_length=1, max_length=128)] | None = None

    @field_validator("email")
    @classmethod
    def _valid_email(cls, email: str | None) -> str | None:
        if email is not None and not _EMAIL.fullmatch(email):
            raise ValueError("not a valid email address")
        return email.lower() if email is not None else None

    @field_validator("wallet_address")
    @classmethod
    def _lower_wallet(cls, wallet: str | None) -> str | None:
        return wallet.lower() if wallet is not None else None

    @model_validator(mode="after")
    def _at_least_one(self) -> "Identifiers":
        if self.email is None and self.wallet_address is None and self.external_id is None:
            raise ValueError("needs at least one of email, walletAddress, externalId")
        return self


class Event(_Body):
    event: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:-]{1,64}$")]
    contact: Identifiers
    attributes: Annotated[dict[str, str | int | float | bool], Field(max_length=50)] = {}
    payload: dict[str, Any] = {}
    idempotency_key: Annotated[str, Field(min_length=1, max_length=256)] = Field(
        default_factory=lambda: str(uuid.uuid4())
    )
    occurred_at: datetime = Field(default_factory=lambda: datetime.now(UTC))


class Result(_Body):
    accepted: bool
    deduplicated: bool
    idempotency_key: str


async def session() -> AsyncIterator[AsyncSession]:
    async with sessions() as opened:
        yield opened


Session = Annotated[AsyncSession, Depends(session)]
Bearer = Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())]


async def organization(session: Session, bearer: Bearer) -> int:
    digest = hashlib.sha256(bearer.credentials.encode()).hexdigest()
    statement = select(ApiKey.org_id).where(ApiKey.key_hash == digest, ApiKey.revoked_at.is_(None))
    org_id = await session.scalar(statement)
    if org_id is None:
        raise HTTPException(401, "missing, invalid or revoked key")
    return org_id


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with sessions() as session, session.begin():
        await _seed(session)
    yield
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


@app.get("/healthz")
async def healthz() -> dict[str, str]:
    return {}


@app.post("/api/v1/events", status_code=202)
async def ingest(event: Event, session: Session, org_id: Annotated[int, Depends(organization)]) -> Result:
    contact = await _find(session, org_id, event.contact) or await _create(session, org_id, event)
    _update(contact, event)
    event_id = await _store(session, org_id, contact, event)
    if event_id is None:
        await session.rollback()
    else:
        await _enter(session, org_id, event, event_id)
        await session.commit()
    return Result(accepted=True, deduplicated=event_id is None, idempotency_key=event.idempotency_key)


async def _find(session: AsyncSession, org_id: int, who: Identifiers) -> Contact | None:
    """Return the contact by wallet, else by email, else by external id."""
    sent = [
        (column, value)
        for column, value in (
            (Contact.wallet_address, who.wallet_address),
            (Contact.email, who.email),
            (Contact.external_id, who.external_id),
        )
        if value is not None
    ]
    statement = select(Contact).where(Contact.org_id == org_id, or_(*(column == value for column, value in sent)))
    rows = (await session.scalars(statement)).all()
    for column, value in sent:
        for contact in rows:
            if getattr(contact, column.key) == value:
                return contact
    return None


async def _create(session: AsyncSession, org_id: int, event: Event) -> Contact:
    values = {"id": uuid.uuid4(), "org_id": org_id, "attributes": event.attributes, **event.contact.model_dump()}
    created = await session.scalar(insert(Contact).values(values).on_conflict_do_nothing().returning(Contact))
    if created is None:  # a concurrent request inserted it first
        created = await _find(session, org_id, event.contact)
    assert created is not None
    return created


def _update(contact: Contact, event: Event) -> None:
    """Fill in missing identifiers and merge attributes; the session writes only what changed."""
    for name, value in event.contact.model_dump(exclude_none=True).items():
        if getattr(contact, name) is None:
            setattr(contact, name, value)
    merged = contact.attributes | event.attributes
    if merged != contact.attributes:
        contact.attributes = merged


async def _store(session: AsyncSession, org_id: int, contact: Contact, event: Event) -> uuid.UUID | None:
    """Insert the event and return its id, or None if an event with its key exists."""
    values = {
        "id": uuid.uuid4(),
        "org_id": org_id,
        "contact_id": contact.id,
        "event": event.event.lower(),
        "payload": event.payload,
        "idempotency_key": event.idempotency_key,
        "occurred_at": event.occurred_at,
        "created_at": datetime.now(UTC),
    }
    return await session.scalar(insert(StoredEvent).values(values).on_conflict_do_nothing().returning(StoredEvent.id))


async def _enter(session: AsyncSession, org_id: int, event: Event, event_id: uuid.UUID) -> None:
    name = event.event.lower()
    statement = select(Automation).where(Automation.org_id == org_id, Automation.active, Automation.event == name)
    for automation in await session.scalars(statement):
        if all(event.payload.get(filter_["path"]) == filter_["value"] for filter_ in automation.filters):
            session.add(
                Entry(id=uuid.uuid4(), org_id=org_id, automation_id=automation.id, event_id=event_id, state="pending")
            )


async def _seed(session: AsyncSession) -> None:
    """Add the key and the automation of the bench."""
    digest = hashlib.sha256(os.environ["BENCH_KEY"].encode()).hexdigest()
    session.add(ApiKey(key_hash=digest, org_id=1, revoked_at=None))
    filters = [{"path": "asset", "operator": "eq", "value": "USDC"}]
    session.add(Automation(id=uuid.uuid4(), org_id=1, active=True, event="first_deposit", filters=filters))


if __name__ == "__main__":
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="error",
    )
