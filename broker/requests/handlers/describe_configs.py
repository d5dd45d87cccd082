"""DescribeConfigs: the settings of topics and of this broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ottla.protocol.api.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

from ...config.dynamic_configs import ConfigDescriber, DescribedConfig, ResourceType, check_broker
from ..errors import EXPECTED_ERRORS, error_code_of, error_message_of
from ..topic_metadata import find_topic

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

#: Kafka's numbers of the types that a setting can have.
_TYPES = {"bool": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7}


def handle(
    broker: Broker, _context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Answer DescribeConfigs."""
    describer = ConfigDescriber(broker.config)
    # Each once: an answer is far longer than a question.
    wanted = dict.fromkeys(
        (asked.resource_type, asked.resource_name, frozenset(asked.configuration_keys or ()))
        for asked in request.resources
    )
    results = []
    for kind, name, keys in wanted:
        try:
            described = _describe(broker, describer, kind, name)
        except EXPECTED_ERRORS as error:
            results.append(
                DescribeConfigsResult(
                    error_code=error_code_of(error),
                    error_message=error_message_of(error),
                    resource_type=kind,
                    resource_name=name,
                )
            )
            continue
        configs = [_result(one, request) for one in described if not keys or one.key.name in keys]
        results.append(
            DescribeConfigsResult(
                error_message=None, resource_type=kind, resource_name=name, configs=configs
            )
        )
    return DescribeConfigsResponse(results=results)


def _describe(
    broker: Broker, describer: ConfigDescriber, kind: int, name: str
) -> Iterable[DescribedConfig]:
    if kind == ResourceType.TOPIC:
        return describer.topic(find_topic(broker, name).configs)
    if kind == ResourceType.BROKER and not name:
        return ()  # what was altered for all brokers at once, which cannot be
    check_broker(kind, name, [broker.id])
    return describer.broker()


def _result(
    described: DescribedConfig, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    synonyms = described.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=described.key.name,
        value=described.value,
        read_only=described.is_read_only,
        config_source=described.source,
        synonyms=[
            DescribeConfigsSynonym(name=name, value=value, source=source)
            for name, value, source in synonyms
        ],
        config_type=_TYPES[described.key.type],
        documentation=described.key.doc if request.include_documentation else None,
    )
