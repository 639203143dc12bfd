"""The on-chain follower: reads logs from EVM nodes, keeps them with their contacts, and starts automations."""
