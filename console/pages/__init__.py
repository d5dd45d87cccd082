"""The pages: rendered on the server, from the queries that the REST API has too."""
