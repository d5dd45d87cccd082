"""Transfer jobs: money between accounts, exactly once, with the clients of many libraries."""
