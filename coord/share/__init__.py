"""Share groups (KIP-932): members that share partitions, and the records they have acquired.

`group` and `coordinator` are the group coordinator's side, `partition` is that of the leader of a
partition. `state` is what they exchange, and what is durable.
"""
