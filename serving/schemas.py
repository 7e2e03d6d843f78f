"""The HTTP contract: requests as they are validated, replies as they are documented.

Validation refuses what it cannot serve, by name; nothing is clamped silently.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
)

from features.parsing import MAX_ID_LENGTH
from serving.priority import HEADER, Priority

MAX_K = 500
MAX_IDS = 1_000
MAX_SEEDS = 100
MAX_FIELDS = 64
MAX_TIMEOUT_MS = 1_000
"""A gateway replica that has not answered by then hangs, and another one is asked."""
MAX_CURSOR = 16_384


def encodable(text: str) -> str:
    """Lone surrogates pass JSON but cannot be written as UTF-8 again."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("holds a lone surrogate; send well-formed Unicode") from None
    return text


# Bounds stand before the function, where pydantic checks them without calling Python.
Id = Annotated[StrictStr, Field(min_length=1, max_length=MAX_ID_LENGTH), AfterValidator(encodable)]
Name = Annotated[StrictStr, Field(min_length=1, max_length=128), AfterValidator(encodable)]
ShortText = Annotated[StrictStr, Field(max_length=1_024), AfterValidator(encodable)]
Number = Annotated[StrictFloat, Field(allow_inf_nan=False)]
Scalar = ShortText | StrictBool | Annotated[StrictInt, Field(ge=-(2**53), le=2**53)] | Number | None
FeatureValue = Scalar | Annotated[list[ShortText], Field(max_length=256)]
Timeout = Annotated[
    StrictFloat | StrictInt,
    Field(
        gt=0,
        le=MAX_TIMEOUT_MS,
        description="milliseconds until the caller gives up; the service's default when absent",
    ),
]
Filter = Annotated[
    StrictStr,
    Field(
        max_length=1_024,
        description='a boolean expression over item fields, such as `release_year >= 1990 and "Comedy" in genre`',
        examples=["release_year >= 1990"],
    ),
    AfterValidator(encodable),
]


class _Contract(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _UserRequest(_Contract):
    user_id: Id | None = Field(None, description="absent for an anonymous user")
    context: dict[Name, Scalar] = Field(
        default_factory=dict, max_length=MAX_FIELDS, description="context fields of the schema"
    )
    user_features: dict[Name, FeatureValue] = Field(
        default_factory=dict, max_length=MAX_FIELDS, description="user fields that take precedence over the stored ones"
    )
    timeout_ms: Timeout | None = None
    debug: StrictBool = Field(False, description="add stage timings, counts and removals to the reply")


class CallHeaders(BaseModel):
    """What a call may say about itself beside its body."""

    model_config = ConfigDict(frozen=True)

    priority: Priority = Field(
        default=Priority.NORMAL, alias=HEADER, description="under load, high is served first and low is refused first"
    )
    idempotency_key: str | None = Field(
        default=None,
        alias="Idempotency-Key",
        pattern=r"^[\x21-\x7e]{1,128}$",
        description="a repeat of a call with the same key is recorded once; 1 to 128 printable characters",
    )
    request_start: str | None = Field(
        default=None,
        alias="X-Request-Start",
        description="when the call reached the proxy, `t=<milliseconds since 1970>`; its deadline counts from then. "
        "The proxy states it, callers need not",
    )

    def waited_s(self, wall_s: float) -> float:
        """Seconds the call waited in the proxy; 0 when nobody says, or says what cannot be.

        Args:
            wall_s: seconds since 1970.
        """
        digits = (self.request_start or "").removeprefix("t=")
        if not digits.isdecimal() or len(digits) > 15:
            return 0.0
        waited_s = wall_s - int(digits) / 1000
        return waited_s if 0 < waited_s <= MAX_TIMEOUT_MS / 1000 else 0.0


NO_HEADERS = CallHeaders()


class RecommendRequest(_UserRequest):
    """Ask for the best items of the whole catalogue."""

    scene: Name | None = Field(None, description="where the slate is shown, such as `home`; kept with the impression")
    k: StrictInt | None = Field(None, ge=1, le=MAX_K, description="items wanted")
    cursor: Annotated[StrictStr, Field(max_length=MAX_CURSOR)] | None = Field(
        None, description="`next_cursor` of the page before; no item of an earlier page is given again"
    )
    seed_item_ids: list[Id] = Field(
        default_factory=list, max_length=MAX_SEEDS, description="items to start from, most recent first"
    )
    exclude_item_ids: list[Id] = Field(default_factory=list, max_length=MAX_IDS, description="items never to return")
    filter: Filter | None = None
    exclude_seen: StrictBool = Field(True, description="leave out items the user has interacted with")
    dry_run: StrictBool = Field(False, description="answer without recording an impression")


class RankRequest(_UserRequest):
    """Order the caller's own items."""

    item_ids: list[Id] = Field(min_length=1, max_length=MAX_IDS)


class SimilarRequest(_Contract):
    """Ask for items like the given ones."""

    item_ids: list[Id] = Field(min_length=1, max_length=MAX_SEEDS)
    k: StrictInt | None = Field(None, ge=1, le=MAX_K)
    exclude_item_ids: list[Id] = Field(default_factory=list, max_length=MAX_IDS)
    filter: Filter | None = None
    timeout_ms: Timeout | None = None


class Item(BaseModel):
    """One recommended item."""

    id: str
    score: float | None = Field(
        description="higher is better; comparable within one reply; null when nothing ranked it"
    )
    source: str = Field(
        description="the first recall source that found it, personal ones first; `request` for the caller's own items, "
        "`fallback` for items no source gave"
    )
    reasons: list[str] = Field(default=[], description="why it was considered, one sentence a source")
    metadata: dict[str, Any] = {}


class Degradation(BaseModel):
    """A part of the answer that fell short, and why, in words a machine can match."""

    stage: str
    reason: str


class Debug(BaseModel):
    """What happened inside, for one request.

    ``counts`` are candidates by stage; ``removed`` are items of the catalogue that could not be shown,
    each under its first cause (ineligible, filtered, excluded).
    """

    timings_ms: dict[str, float]
    counts: dict[str, int]
    removed: dict[str, int]
    objectives: dict[str, dict[str, float | None]] = Field(default={}, description="fine rank's objectives by item id")


class Reply(BaseModel):
    """What every recommending route answers."""

    recommendation_id: str
    items: list[Item]
    returned: int
    next_cursor: str | None = Field(None, description="send as `cursor` for the next page; null when there is none")
    unknown_item_ids: list[str] = Field(default=[], description="ids of the request that the release does not hold")
    degraded: list[Degradation]
    versions: dict[str, str]
    took_ms: float
    debug: Debug | None = None


class ErrorBody(BaseModel):
    type: str
    message: str
    field: str | None = None


class ErrorReply(BaseModel):
    """What every refusal and failure answers."""

    error: ErrorBody


class Health(BaseModel):
    status: str
    reason: str | None = None


class Status(BaseModel):
    """What runs here."""

    ready: bool
    versions: dict[str, str]
    resident: list[str] = Field(description="releases in memory, the one that serves first")
    traffic: dict[str, Any] = Field(description="parts of the traffic that other releases or settings get")
    items: int
    users: int
    objectives: list[str]
    plan: dict[str, str] = Field(description="where each stage runs: `fused` or `handle`")
    tiers: dict[str, str] = Field(description="what each stage runs on: `cpu`, `gpu` or `npu`")
    uptime_s: float
    requests: int = Field(description="replies given by this replica, health probes included")
    degraded: int = Field(description="replies of them that were degraded")
    errors: int = Field(description="requests that failed")
    refused: int = Field(description="requests refused for overload")
    quality_step: int = Field(description="steps of quality given up for overload; 0: none")
    impressions_written: int
    impressions_dropped: int = Field(description="impressions that could not be kept")
    events_accepted: int = Field(default=0, description="events taken by this replica")
    events_repeated: int = Field(default=0, description="events that had been taken before")
    events_brought_later: int = Field(
        default=0, description="events that entered their users' histories late: the store was away, or a replica died"
    )
    events_commits: int = Field(default=0, description="transactions of the event log that took them")
