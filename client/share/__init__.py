"""The share consumer (KIP-932): records of shared partitions, acknowledged one by one."""
