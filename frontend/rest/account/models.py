"""Responses about an account: its costs, its audit log, and the use of its limits.

Times are in seconds since the epoch, amounts of money are decimal numbers as texts.
"""

from __future__ import annotations

from pydantic import BaseModel, Field

# --- costs ---------------------------------------------------------------------------------------------------


class CostTotal(BaseModel):
    currency: str
    amount: str


class CostLine(BaseModel):
    """Costs of a queue or stream, before rounding, minimums and tax."""

    queue: str = Field(description="empty: calls that concern no queue")
    tags: str
    currency: str
    amount: str
    charges: dict[str, str] = Field(description="amounts by kind of charge, such as Requests and Storage")


class CostForecast(BaseModel):
    """Forecast of the month's bill, which is between `low` and `high` in nine of ten cases."""

    currency: str
    so_far: str
    low: str
    likely: str
    high: str
    days: int = Field(description="number of days that the forecast is computed from")


class CostsShown(BaseModel):
    """Costs of a month."""

    month: str
    account: str
    name: str = Field(description="meaning of the totals: Cost so far, or Invoiced")
    note: str = Field(description="what the totals include")
    explained: str = Field(description="time and extent of the rating, in plain words")
    totals: list[CostTotal]
    lines: list[CostLine] = Field(description="costs of queues, highest first")
    more: int = Field(description="number of lines left out")
    forecast: CostForecast | None = Field(description="null: the month was not analysed yet, or has too few days")


# --- limits --------------------------------------------------------------------------------------------------


class LimitUse(BaseModel):
    """A limit of the account, and its use now."""

    name: str = Field(description="name of the limit, as in `limits`")
    limit: float | None = Field(description="quota, or burst of a rate; null: no limit")
    per_second: float | None = Field(None, description="rate: calls per second after a burst")
    used: float | None = Field(
        description="quota: what exists now; rate: calls of the burst that are used up; null: not known now"
    )
    share: float | None = Field(description="used part of the limit, 0 to 1; null: no limit, or not known")
    local: bool = Field(description="true: counted, and limited, at this process of the service alone")


class LimitUseList(BaseModel):
    account: str
    limits: list[LimitUse]


# --- audit log -----------------------------------------------------------------------------------------------


class AuditLine(BaseModel):
    """An administrative act, or a refused sign-in."""

    time: str = Field(description="time in UTC, such as 2026-11-27T10:00:00.000Z")
    request_id: str
    principal: str = Field(description="ARN of the caller; empty: not known")
    credential: str = Field(description="public id of the key, session or token")
    address: str | None = Field(description="address of the client; null: a caller of another account")
    action: str = Field(description="name of the route or of the action of SQS; sign-in: a refused one")
    target: str
    outcome: str = Field(description="done; refused: nothing was changed; or failed")
    reason: str
    made: str | None = Field(None, description="public id of a credential that was made")
    count: int | None = Field(None, description="number of refused sign-ins that this line stands for")


class AuditPage(BaseModel):
    lines: list[AuditLine] = Field(description="newest first; maybe fewer than asked for, or none")
    next: str | None = Field(description="value of `before` for older lines; null: there are none")
