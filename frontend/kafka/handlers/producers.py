"""InitProducerId: an id for an idempotent producer.  There are no transactions."""

from __future__ import annotations

from frontend.kafka.protocol.generated.producers import InitProducerIdRequest, InitProducerIdResponse
from frontend.kafka.request.context import KafkaCall, KafkaContext
from frontend.streams.errors import ErrorCode
from frontend.streams.rights import WRITE, permits
from metadata_service.store import StoreError


async def init_producer_id(
    context: KafkaContext, call: KafkaCall, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """Give the producer a new id.  Kafka does so too if a producer without transactions has one already."""
    response = InitProducerIdResponse(call.throttle_time_ms)
    if request.transactional_id is not None:
        response.error_code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not permits(call.principal, (WRITE,)):
        response.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    else:
        try:
            response.producer_id = await context.catalog.next_producer_id()
        except StoreError as error:
            context.report(error)
            response.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return response
