"""DescribeConfigs: the configs of topics, of this broker, and of all brokers."""

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

from ...config.dynamic_configs import (
    ConfigDescriber,
    DescribedConfig,
    ResourceType,
    check_broker,
    protected_resource,
)
from ..authorization import DESCRIBE_CONFIGS, check
from ..errors import EXPECTED_ERRORS, error_code_of, error_message_of
from ..topic_metadata import find_topic

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

#: Kafka's numbers of config types.
_TYPES = {"bool": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7}


def handle(
    broker: Broker, context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Handle DescribeConfigs."""
    describer = ConfigDescriber(broker.config, broker.topics.image)
    # Deduplicated, since a response is far larger than a request.
    resources = dict.fromkeys(
        (
            resource.resource_type,
            resource.resource_name,
            frozenset(resource.configuration_keys or ()),
        )
        for resource in request.resources
    )
    results = []
    for resource_type, name, keys in resources:
        try:
            check(broker, context, DESCRIBE_CONFIGS, *protected_resource(resource_type, name))
            configs = _describe(broker, describer, resource_type, name)
        except EXPECTED_ERRORS as error:
            results.append(
                DescribeConfigsResult(
                    error_code=error_code_of(error),
                    error_message=error_message_of(error),
                    resource_type=resource_type,
                    resource_name=name,
                )
            )
            continue
        results.append(
            DescribeConfigsResult(
                error_message=None,
                resource_type=resource_type,
                resource_name=name,
                configs=[
                    _result(config, request)
                    for config in configs
                    if not keys or config.key.name in keys
                ],
            )
        )
    return DescribeConfigsResponse(results=results)


def _describe(
    broker: Broker, describer: ConfigDescriber, resource_type: int, name: str
) -> Iterable[DescribedConfig]:
    if resource_type == ResourceType.TOPIC:
        return describer.topic(find_topic(broker, name).configs)
    if resource_type == ResourceType.GROUP:
        return describer.group(broker.topics.image.group_configs.get(name, {}))
    if resource_type == ResourceType.BROKER and not name:
        return describer.all_brokers()
    check_broker(resource_type, name, [broker.id])
    return describer.broker()


def _result(
    config: DescribedConfig, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    synonyms = config.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=config.key.name,
        value=config.value,
        read_only=config.is_read_only,
        config_source=config.source,
        is_sensitive=config.key.is_sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=name, value=value, source=source)
            for name, value, source in synonyms
        ],
        config_type=_TYPES[config.key.type],
        documentation=config.key.doc if request.include_documentation else None,
    )
