"""What tests share.

brokers          in-process brokers          daemon         broker processes: the daemon runner
wire, requests   the raw wire client         load           the load generator
scripted_broker  the scripted fake broker    checker        verifies what load sent and received
clients/         adapters of Kafka clients   group_members  group members as processes
"""
