"""Requests and responses of checks of policies, as described in the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from frontend.rest.models import Given


class PolicyQuestion(Given):
    """A call that a policy is to decide on."""

    action: str = Field(description="such as SendMessage or Publish")
    principal: str | None = Field(
        None,
        description="the caller: an account, an ARN, or the name of a service such as sns.amazonaws.com; "
        "null: an unsigned call",
    )
    conditions: dict[str, str] = Field(
        {},
        fail_fast=True,
        max_length=50,
        description="values of condition keys, such as aws:SourceArn; those that depend on the caller and on the time "
        "alone are known, and a call is assumed to be by https",
    )
    policy: dict[str, Any] | str | None = Field(
        None, description="a policy to be tried instead of the stored one, as an object or as its text"
    )


class PolicyStatementShown(BaseModel):
    number: int = Field(description="place in the policy, from 1")
    sid: str | None
    effect: Literal["Allow", "Deny"]


class PolicyAnswer(BaseModel):
    """The decision.  The scopes and prefixes of the caller's credential apply as well, and are not part of it."""

    allowed: bool
    statement: PolicyStatementShown | None = Field(description="statement that decides; null: none does")
    reason: str
