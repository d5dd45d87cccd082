"""The web console and REST API of a cluster: a client of any Kafka-compatible cluster.

It uses the SDK only, so it costs brokers nothing while nobody looks. `app` builds the ASGI
application, `server` runs it, `access` decides who may send which request, `api` has the REST
endpoints, and `pages` the HTML, whose live parts and forms call the same endpoints.

Everything a query can take is bounded by `config.Limits`, and nothing of a record is ever rendered
as HTML.
"""
